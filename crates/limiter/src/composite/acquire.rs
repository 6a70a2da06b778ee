//! Enters a request into its lane, again if needed, and turns the outcome into the caller's
//! result.

use std::sync::Arc;

use futures_util::FutureExt as _;
use sluicegate_core::{BucketDemand, Done, LIMITS_MAX, Outcome, Purpose, QueuedRequest, WritePath};

use super::bucket_request::BucketRequest;
use super::composite_store::CompositeStore;
use super::lane::Lane;
use super::table_call::Resolved;
use super::undecided_error::{setup_error, unavailable_if_in_doubt};
use crate::call::{CallContext, Effect, new_id};
use crate::error::{AcquireError, InvalidRequest};
use crate::store::BucketGrant;
use crate::table::Table;

impl<T: Table> CompositeStore<T> {
    /// Takes from all of these buckets, or from none.
    pub(super) async fn take(
        &self,
        mut targets: Vec<BucketRequest>,
        context: &mut CallContext<'_>,
    ) -> Result<(Vec<BucketGrant>, Option<WritePath>), AcquireError> {
        let lane = self.lane(&targets);
        let done = self.submit_until_done(&lane, &Purpose::Acquire, &mut targets, context).await;
        done.map(|done| granted(targets, done)).map_err(|(error, _)| error)
    }

    /// Submits a request to its lane, again if needed, until it is done or has failed. A correction
    /// is submitted once: it is made under the limits that the item has.
    ///
    /// An acquire gets a new id before it enters the queue again, because its limits and amounts
    /// may differ now. A lost write may have carried it under the old id. If that write happened,
    /// the queue gives its tokens back; it must not count as the grant of the new attempt.
    ///
    /// A lease keeps its id. The queue does not give its tokens back: it finds and settles a lost
    /// write of the lease by that id. The errors of a lease do not say whether it is in doubt:
    /// callers ask `WriteQueue::lease_in_doubt`.
    pub(super) async fn submit_until_done(
        &self,
        lane: &Arc<Lane>,
        purpose: &Purpose,
        targets: &mut [BucketRequest],
        context: &mut CallContext<'_>,
    ) -> Result<Done, (AcquireError, Effect)> {
        let is_acquire = *purpose == Purpose::Acquire;
        let mut may_send_back_for_limits = *purpose != Purpose::Correct;
        let mut may_read_limits_again = true;
        loop {
            let demand = |target: &BucketRequest| BucketDemand {
                amounts: target.amounts.clone(),
                configuration: target.configuration.clone(),
            };
            let (id, started_at) = (context.id.clone(), context.started_at);
            let request = || QueuedRequest {
                id: id.clone(),
                purpose: purpose.clone(),
                demands: targets.iter().map(demand).collect(),
                started_at,
                may_send_back_for_limits,
            };
            let resolved = lane.submit(self, &request, context).await?;
            let Resolved { outcome, table_error, .. } = resolved;
            let contended = AcquireError::Contended { attempts: context.cost.attempts };
            let failed = match outcome {
                Outcome::Done(done) => return Ok(done),
                Outcome::Refused(limits) => Some((false, AcquireError::refused(limits.concat()))),
                Outcome::OutdatedLimits(_) => {
                    may_send_back_for_limits = false;
                    self.follow_newer_limits(targets, context).await;
                    None
                }
                // Stored limits are read again, once: an unknown limit may have been stored a
                // moment ago, and a deleted limit may have made room for another one.
                Outcome::UnknownLimit(_) | Outcome::NoRoom(..) if may_read_limits_again => {
                    may_read_limits_again = false;
                    for target in &mut *targets {
                        let read = self.read_limits_again(target, true, context).boxed().await;
                        read.map_err(|error| (error, Effect::None))?;
                    }
                    None
                }
                Outcome::UnknownLimit(limit) => {
                    Some((false, InvalidRequest::UnknownLimit(limit).into()))
                }
                Outcome::NoRoom(index, limit) => {
                    let (entity, max) = (targets[index].bucket.entity.clone(), LIMITS_MAX);
                    Some((false, InvalidRequest::BucketFull { entity, limit, max }.into()))
                }
                Outcome::Failed { is_in_doubt } => {
                    Some((is_in_doubt, AcquireError::Setup(setup_error(table_error.as_deref()))))
                }
                Outcome::Contended { is_in_doubt } => Some((is_in_doubt, contended)),
                // The table answered, so this is no outage.
                Outcome::Ambiguous => {
                    return Err((unavailable_if_in_doubt(true, contended), Effect::Ambiguous));
                }
            };
            if let Some((is_in_doubt, error)) = failed {
                let error = unavailable_if_in_doubt(is_in_doubt && is_acquire, error);
                return Err((error, Effect::of(is_in_doubt)));
            }
            // The limits that a parent follows now may lack a requested one.
            targets.iter_mut().for_each(BucketRequest::leave_out_what_parent_lacks);
            if is_acquire {
                context.id = new_id();
            }
        }
    }
}

/// The parts and the path of a grant.
fn granted(targets: Vec<BucketRequest>, done: Done) -> (Vec<BucketGrant>, Option<WritePath>) {
    let parts = targets.into_iter().zip(done.images).map(|(target, image)| target.into_part(image));
    // `done.path` is `None` if an earlier attempt took the tokens. A grant needs a path, because
    // `Grant::is_held` reads `None` as held tokens.
    (parts.collect(), done.path.or(Some(WritePath::Unclaimed)))
}

#[cfg(test)]
mod tests {
    use sluicegate_core::Amounts;

    use super::*;

    /// An image showed an earlier attempt, and the caller left before the answer to the next call.
    #[test]
    fn grant_of_an_earlier_attempt_is_never_taken_for_one_of_held_tokens() {
        let (path, images, leased, dropped) = (None, Vec::new(), Amounts::new(), Vec::new());
        let done = Done { path, images, leased, dropped, is_forced: false, attempts: 1 };
        let (_, path) = granted(Vec::new(), done);
        assert_eq!(path, Some(WritePath::Unclaimed));
    }
}
