//! Corrects grants.

use std::sync::Arc;

use sluicegate_core::{CompositeBucket, LimitName, Millitokens};

use super::RedisStore;
use super::range::check_amounts;
use super::reply::Status;
use super::script::{ADJUST, WHOLE_ADJUST};
use super::script_bucket::ScriptBucket;
use crate::call::CallContext;
use crate::clock::Clock;
use crate::error::AdjustError;
use crate::store::{Adjusted, Corrected, Correction};

impl RedisStore {
    pub(super) async fn correct(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Corrected, AdjustError> {
        let Correction { id, bucket, amounts, configuration, mark, deadline, .. } = *correction;
        check_amounts(amounts)?;
        // A permit may have the limits of a request for another entity.
        let configuration = Arc::new(self.configured.of(bucket, &configuration.explicit)?);
        let gives_back = amounts.values().any(|amount| *amount < Millitokens::ZERO);
        let targets = [ScriptBucket { bucket: bucket.clone(), configuration }];
        let mut context = CallContext::under(id.clone(), clock, deadline);
        let script = if mark.is_some() { &WHOLE_ADJUST } else { &ADJUST };
        let reply = self.repeat(&mut context, script, &targets, |context, in_doubt| {
            // The mark tells if an attempt in doubt took effect.
            let in_doubt = if mark.is_some() { 0 } else { in_doubt };
            let sent = self.sent(clock, in_doubt);
            let mut call = self.take_or_correct_call(&targets, amounts, &context.id, sent);
            if let Some(mark) = mark {
                let kept_ms = mark.until.get().saturating_sub(clock.now().get()).max(1);
                call.keys.push(self.keys.mark(mark));
                call.args[1] = format!("{kept_ms} {}", mark.fingerprint).into_bytes();
            }
            call
        });
        let mut reply = match reply.await {
            Ok(reply) => reply,
            Err(failure) => {
                let error = AdjustError::of_call(failure.error);
                return Err(match error {
                    error if !failure.in_doubt => error,
                    // Tokens may have been given back: the caller must not try again.
                    error if gives_back && mark.is_none() => {
                        self.counters.ambiguous.increment();
                        AdjustError::Ambiguous(error.into())
                    }
                    AdjustError::Unavailable(_) => error,
                    // The server answers, but an earlier attempt is in doubt.
                    answer => AdjustError::Unavailable(answer.into()),
                });
            }
        };
        let mut read = || {
            if reply.is_usual() {
                return Ok((None, reply.bucket(bucket)?, Vec::new()));
            }
            let status = reply.status()?;
            let header = reply.header()?;
            let image = reply.bucket(bucket)?;
            Ok((Some((status, header)), image, reply.limits()?))
        };
        let (unusual, image, mut dropped) =
            read().map_err(|table_error| AdjustError::of_call(context.fail_with(table_error)))?;
        let (mut already_made, mut key_was_reused) = (false, false);
        if let Some((status, header)) = unusual {
            key_was_reused = status == Status::KeyReused;
            if key_was_reused || status == Status::AlreadyApplied {
                already_made = mark.is_some();
                // The answer to the attempt that was made named the limits that the bucket lacked.
                let is_missing = |(limit, amount): &(&LimitName, &Millitokens)| {
                    let lacks = |image: &CompositeBucket| !image.limits.contains_key(*limit);
                    **amount != Millitokens::ZERO && image.as_ref().is_some_and(lacks)
                };
                let missing = amounts.iter().filter(is_missing);
                dropped = missing.map(|(limit, _)| limit.clone()).collect();
            }
            self.count_warnings(header);
            if status == Status::Ambiguous {
                return Err(AdjustError::Ambiguous(
                    "the bucket has forgotten the correction".into(),
                ));
            }
        }
        let adjusted = Adjusted { dropped, already_made, key_was_reused, ..Adjusted::default() };
        let image = image.map(Arc::new);
        #[cfg(feature = "leasing")]
        self.learn_if_known(bucket, image.as_ref());
        Ok(Corrected { adjusted, image, attempts: context.cost.attempts })
    }
}
