//! Corrects grants. A correction is never refused. It gives up its conditions on the balance
//! after twelve attempts, or when three quarters of its time have passed.
//!
//! An attempt whose answer was lost may arrive late. The item refuses the attempt as long as the
//! item remembers the id ([`guide`](crate::guide#lost-answers)). Once the item has forgotten the
//! id, tokens may be given back twice; where that is possible, the correction is counted as
//! ambiguous.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_core::{Done, Millitokens, Purpose, QueueSettings};

use super::bucket_request::BucketRequest;
use super::composite_store::CompositeStore;
use super::lane::Lane;
use super::table_call::LaneMark;
use crate::call::{CallContext, Effect};
use crate::clock::Clock;
use crate::error::{AcquireError, AdjustError};
use crate::store::{Adjusted, Corrected, Correction};
use crate::table::Table;

impl<T: Table> CompositeStore<T> {
    /// Makes a correction, together with the other requests that wait for its bucket.
    pub(super) async fn make_correction(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Corrected, AdjustError> {
        let context = &mut CallContext::under(correction.id.clone(), clock, correction.deadline);
        let (known_bucket, settings) =
            (self.known_bucket(correction.bucket), self.queue_settings());
        let lane = match correction.mark {
            None => known_bucket.lane(correction.bucket, settings),
            // The mark belongs to this correction, so no other request may share its write.
            Some(mark) => {
                let settings = QueueSettings { is_transactional: true, ..settings };
                let marked = Some(Arc::new(LaneMark::new(mark.clone())));
                let images = vec![known_bucket.newest.clone()];
                Lane::new(vec![correction.bucket.clone()], images, settings, marked)
            }
        };
        let (bucket, amounts) = (correction.bucket.clone(), correction.amounts.clone());
        let configuration = Arc::new(correction.configuration.clone());
        let mut targets = [BucketRequest::new(bucket, amounts, configuration, known_bucket)];
        // A quarter of the time remains for a write without conditions on the balance.
        let force_at = context.ends_at - correction.deadline / 4;
        let result = {
            let done = self.submit_until_done(&lane, &Purpose::Correct, &mut targets, context);
            let mut done = std::pin::pin!(done);
            match tokio::time::timeout_at(force_at, &mut done).await {
                Ok(result) => result,
                Err(_) => {
                    lane.lock().queue.force(correction.id);
                    done.await
                }
            }
        };
        let Done { images, dropped, is_forced, .. } =
            result.map_err(|(error, effect)| self.not_corrected(correction, error, effect))?;
        let is_true = |flag: fn(&LaneMark) -> &AtomicBool| {
            lane.mark.as_ref().is_some_and(|marked| flag(marked).load(Ordering::Relaxed))
        };
        let adjusted = Adjusted {
            dropped,
            is_forced,
            already_made: is_true(|marked| &marked.was_there),
            key_was_reused: is_true(|marked| &marked.key_was_reused),
            write_units: context.cost.write_units,
            ..Adjusted::default()
        };
        let image = images.into_iter().next().flatten();
        Ok(Corrected { adjusted, image, attempts: context.cost.attempts })
    }

    /// The error for the caller:
    ///
    /// | | it only takes, or it has a mark | it gives back, without a mark |
    /// |---|---|---|
    /// | nothing was done | `Contended`, `Setup`, or `Unavailable` in an outage | the same |
    /// | a write is in doubt | `Unavailable` (if an `AdjustError` is inside, the store answers) | `Ambiguous` |
    /// | the bucket may have forgotten the write | `Unavailable` with `Ambiguous` inside | `Ambiguous` |
    ///
    /// After `Ambiguous` the caller must not try again.
    fn not_corrected(
        &self,
        correction: &Correction<'_>,
        error: AcquireError,
        effect: Effect,
    ) -> AdjustError {
        let gives_back = correction.amounts.values().any(|amount| *amount < Millitokens::ZERO);
        // With a mark, a repetition finds the mark or makes the correction. Without a mark, a
        // repetition takes a debit twice at worst.
        let may_repeat = correction.mark.is_some() || !gives_back;
        let error = match effect {
            Effect::None => {
                return match error {
                    AcquireError::Unavailable(source) => AdjustError::not_sent(source),
                    error => error.into(),
                };
            }
            Effect::InDoubt if may_repeat => error.into(),
            Effect::InDoubt => {
                self.counters.ambiguous.add(1);
                AdjustError::Ambiguous(AdjustError::from(error).into())
            }
            // The queue has counted it.
            Effect::Ambiguous => {
                AdjustError::Ambiguous("the bucket no longer shows the write".into())
            }
        };
        match error {
            AdjustError::Unavailable(_) => error,
            // `Unavailable` around an `AdjustError` means that the correction is in doubt and may
            // be repeated. To the guard it is an answer of the store, not an outage.
            error if may_repeat => AdjustError::Unavailable(error.into()),
            error => error,
        }
    }
}

/// The error of a correction that a lane did not make. (Its request was checked before, so it is
/// never invalid.) `AdjustError::of_call` is for the other calls.
impl From<AcquireError> for AdjustError {
    fn from(error: AcquireError) -> Self {
        match error {
            // `Unavailable` around an `AcquireError` says that the outcome is unknown. The inner
            // error suffices here, because `not_corrected` says so again.
            AcquireError::Unavailable(source) => match source.downcast::<AcquireError>() {
                Ok(error) => (*error).into(),
                Err(source) => Self::Unavailable(source),
            },
            AcquireError::Setup(error) => error.into(),
            _ => Self::Contended,
        }
    }
}
