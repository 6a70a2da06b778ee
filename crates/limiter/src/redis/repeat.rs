//! Repeats a call under one id until it is answered or its time is up.

use super::RedisStore;
use super::reply::{Header, Reply};
use super::script::{Call, Script};
use super::table_error::leaves_in_doubt;
use crate::call::CallContext;
use crate::error::AcquireError;

/// A call that was not answered.
pub(super) struct Lost {
    pub(super) error: AcquireError,
    /// True if it may have been done.
    pub(super) in_doubt: bool,
}

impl RedisStore {
    /// Sends a call until it is answered: the bucket remembers its id, or it changes nothing.
    /// `call` makes it; its argument is the number of earlier attempts that may have been done.
    pub(super) async fn repeat(
        &self,
        run: &mut CallContext<'_>,
        script: &Script,
        call: impl Fn(&CallContext<'_>, u32) -> Call,
    ) -> Result<Reply, Lost> {
        let mut unanswered = 0;
        loop {
            run.attempts += 1;
            let call = call(run, unanswered);
            let table_error = match run.in_time(script.run(&self.connection, &call)).await {
                Ok(values) => return Ok(Reply::new(values)),
                Err(table_error) => table_error,
            };
            unanswered += u32::from(leaves_in_doubt(&table_error));
            let may_go_on = run.wait_out(table_error).await;
            if !may_go_on {
                let in_doubt = unanswered > 0;
                let error = match run.given_up() {
                    // This error means that nothing was done.
                    error @ AcquireError::Contended { .. } if in_doubt => {
                        AcquireError::Unavailable(error.into())
                    }
                    error => error,
                };
                return Err(Lost { error, in_doubt });
            }
        }
    }

    /// Counts the observations of a script.
    pub(super) fn note(&self, header: Header) {
        if header.is_overrun {
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
