//! Repeats a call under one id until it is answered or its time is up.

use super::RedisStore;
use super::boundaries::Boundaries;
use super::error::{leaves_in_doubt, was_not_sent};
use super::reply::{Header, Reply};
use super::script::{Call, Script};
use super::script_bucket::ScriptBucket;
use crate::call::CallContext;
use crate::error::AcquireError;

/// The end of a call that was not answered.
pub(super) struct CallFailure {
    pub(super) error: AcquireError,
    /// True if it may have been done.
    pub(super) in_doubt: bool,
}

impl CallFailure {
    /// The error as the guard reads it: a bare `Contended` or `Setup` means that nothing was done.
    pub(super) fn into_error(self) -> AcquireError {
        match self.error {
            error @ (AcquireError::Contended { .. } | AcquireError::Setup(_)) if self.in_doubt => {
                AcquireError::Unavailable(error.into())
            }
            error => error,
        }
    }
}

impl RedisStore {
    /// Sends a call until the server answers. Repeating is safe: the bucket remembers the id, or
    /// the call only reads.
    ///
    /// `call` builds the call on these buckets. Its second argument is the number of attempts in doubt.
    pub(super) async fn repeat(
        &self,
        context: &mut CallContext<'_>,
        script: &Script,
        buckets: &[ScriptBucket],
        mut call: impl FnMut(&CallContext<'_>, u32) -> Call,
    ) -> Result<Reply, CallFailure> {
        let mut attempts_in_doubt = 0;
        let mut boundaries = Boundaries::around(context.clock.now(), buckets);
        loop {
            context.cost.attempts += 1;
            let mut call = call(context, attempts_in_doubt);
            boundaries.append_to(&mut call);
            let values = context.in_time(script.run(&self.connection, &call)).await;
            let mut reply = values.map(Reply::new);
            let asked = match &mut reply {
                Ok(reply) => Boundaries::asked_by(reply, buckets.len()),
                Err(_) => Ok(None),
            };
            let table_error = match (asked, reply) {
                (Ok(Some(asked)), _) => {
                    // The script did nothing: this call was no attempt.
                    context.cost.attempts -= 1;
                    boundaries = asked;
                    continue;
                }
                (Ok(None), Ok(reply)) => {
                    self.note_time(context.clock, reply.time());
                    return Ok(reply);
                }
                (Ok(None), Err(table_error)) | (Err(table_error), _) => table_error,
            };
            attempts_in_doubt += u32::from(leaves_in_doubt(&table_error));
            // Refused connections must not use up the attempts before the time is up.
            context.cost.attempts -= u32::from(was_not_sent(&table_error));
            let may_go_on = context.wait_out(table_error).await;
            if !may_go_on {
                let (error, in_doubt) = (context.error_of_last_failure(), attempts_in_doubt > 0);
                return Err(CallFailure { error, in_doubt });
            }
        }
    }

    /// Counts the warnings in a script's reply.
    pub(super) fn count_warnings(&self, header: Header) {
        if header.is_ambiguous {
            self.counters.ambiguous.increment();
        }
        if header.was_ahead {
            self.counters.clocks_ahead.increment();
            tracing::warn!(
                "a refill time was more than a minute ahead of this clock: it is pulled back"
            );
        }
    }
}
