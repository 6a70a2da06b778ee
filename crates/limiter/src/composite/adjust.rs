//! Corrects grants. A correction is never refused. It gives up its conditions on the balance
//! after twelve attempts, or when three quarters of its time have passed.
//!
//! An attempt whose answer was lost may arrive late. The item refuses the attempt as long as the
//! item remembers the id ([`guide`](crate::guide#lost-answers)). Once the item has forgotten the
//! id, tokens may be given back twice; where that is possible, the correction is counted as
//! ambiguous.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_core::{
    Amounts, BucketDemand, Done, Millitokens, Outcome, Purpose, QueueSettings, QueuedRequest,
};

use super::composite_store::CompositeStore;
use super::deadline_error::{error_at_deadline, setup_error};
use super::table_call::{Marked, Resolved};
use crate::call::CallContext;
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
                let marked = Marked { mark: mark.clone(), was_there: AtomicBool::new(false) };
                known_bucket.lane_of_its_own(correction.bucket, settings, Arc::new(marked))
            }
        };
        let configuration = Arc::new(correction.configuration.clone());
        let demand = BucketDemand { amounts: correction.amounts.clone(), configuration };
        let (id, started_at) = (context.id.clone(), context.started_at);
        let request = || QueuedRequest {
            id: id.clone(),
            purpose: Purpose::Correct,
            buckets: vec![demand.clone()],
            started_at,
            may_reread_limits: false,
        };
        // A quarter of the time remains for a write without conditions on the balance.
        let force_at = context.deadline - correction.deadline / 4;
        let submitted = lane.submit(self, &request, context.deadline, context.clock);
        let mut submitted = std::pin::pin!(submitted);
        let in_time = tokio::time::timeout_at(force_at, &mut submitted).await;
        let resolved = match in_time {
            Ok(resolved) => resolved,
            Err(_) => {
                lane.lock().queue.force(&context.id);
                submitted.await
            }
        };
        let mut corrected = match resolved {
            Ok(resolved) => self.corrected(correction, resolved, context),
            Err(left) => {
                let is_in_doubt = left.is_in_doubt;
                let error = error_at_deadline(left, context).into();
                Err(self.error_if_in_doubt(correction, is_in_doubt, error))
            }
        }?;
        let was_there = |marked: &Arc<Marked>| marked.was_there.load(Ordering::Relaxed);
        corrected.adjusted.already_made = lane.mark.as_ref().is_some_and(was_there);
        Ok(corrected)
    }

    fn corrected(
        &self,
        correction: &Correction<'_>,
        Resolved { outcome, cost, table_error }: Resolved,
        context: &mut CallContext<'_>,
    ) -> Result<Corrected, AdjustError> {
        context.cost += cost;
        match outcome {
            Outcome::Done(Done { images, dropped, is_forced, .. }) => {
                let adjusted = Adjusted {
                    dropped,
                    is_forced,
                    write_units: context.cost.write_units,
                    ..Adjusted::default()
                };
                let image = images.into_iter().next().flatten();
                Ok(Corrected { adjusted, image, attempts: context.cost.attempts })
            }
            // With a mark, a repetition finds the mark or makes the correction. Without a mark,
            // this is a debit, which a repetition takes twice at worst.
            Outcome::Ambiguous if correction.mark.is_some() || !gives_back(correction.amounts) => {
                // `Unavailable` around an `AdjustError` means that the correction is in doubt and
                // may be repeated. To the guard it is an answer of the store, not an outage.
                let forgotten = AdjustError::Ambiguous("the item no longer shows the write".into());
                Err(AdjustError::Unavailable(forgotten.into()))
            }
            Outcome::Ambiguous => Err(AdjustError::Ambiguous(
                "the bucket has forgotten the correction, or is gone".into(),
            )),
            Outcome::Failed { is_in_doubt } => {
                let error = AdjustError::Setup(setup_error(table_error.as_deref()));
                Err(self.error_if_in_doubt(correction, is_in_doubt, error))
            }
            Outcome::Contended { is_in_doubt } => {
                Err(self.error_if_in_doubt(correction, is_in_doubt, AdjustError::Contended))
            }
            // Only acquires and leases have the other outcomes.
            _ => Err(AdjustError::Contended),
        }
    }

    /// The error for the caller. If a correction without a mark may have given tokens back, or may
    /// still do so, the error is `Ambiguous`, and the caller must not try again. After
    /// `Unavailable`, the correction may have been made. After any other error, nothing was done.
    fn error_if_in_doubt(
        &self,
        correction: &Correction<'_>,
        is_in_doubt: bool,
        error: AdjustError,
    ) -> AdjustError {
        if is_in_doubt && correction.mark.is_none() && gives_back(correction.amounts) {
            self.counters.ambiguous.add(1);
            return AdjustError::Ambiguous(error.into());
        }
        match error {
            AdjustError::Contended | AdjustError::Setup(_) if is_in_doubt => {
                AdjustError::Unavailable(error.into())
            }
            error => error,
        }
    }
}

impl From<AcquireError> for AdjustError {
    fn from(error: AcquireError) -> Self {
        match error {
            // `Unavailable` around an `AcquireError` says that the outcome is unknown. The inner
            // error suffices here, because `error_if_in_doubt` says so again.
            AcquireError::Unavailable(source) => match source.downcast::<AcquireError>() {
                Ok(error) => (*error).into(),
                Err(source) => Self::Unavailable(source),
            },
            AcquireError::Setup(error) => error.into(),
            _ => Self::Contended,
        }
    }
}

/// True if the correction gives back tokens of some limit, even if it takes tokens of another.
fn gives_back(amounts: &Amounts) -> bool {
    amounts.values().any(|amount| *amount < Millitokens::ZERO)
}
