//! Acquires tokens: finds the buckets of a request, enters them into their lane, and turns the
//! outcome into the caller's result.

use futures_util::FutureExt as _;
use sluicegate_core::{
    BucketDemand, LIMITS_MAX, OnLeave, Outcome, Purpose, QueuedRequest, WritePath,
};

use super::bucket_request::BucketRequest;
use super::composite_store::CompositeStore;
use super::shared_error::{given_up, setup_error};
use super::table_call::{CallCost, Expired, Settled};
use crate::call::CallContext;
use crate::error::{AcquireError, InvalidRequest};
use crate::store::BucketGrant;
use crate::table::Table;

impl<T: Table> CompositeStore<T> {
    /// Takes from all of these buckets, or from none.
    pub(super) async fn take(
        &self,
        targets: &mut [BucketRequest],
        run: &mut CallContext<'_>,
    ) -> Result<(Vec<BucketGrant>, Option<WritePath>), AcquireError> {
        let mut may_reread_limits = true;
        let mut may_look_again = true;
        loop {
            let lane = self.lane(targets);
            let demand = |target: &BucketRequest| BucketDemand {
                amounts: target.amounts.clone(),
                configuration: target.configuration.clone(),
            };
            let request = QueuedRequest {
                id: run.id.clone(),
                purpose: Purpose::Acquire,
                buckets: targets.iter().map(demand).collect(),
                began: run.began,
                may_reread_limits,
            };
            let settled = lane.settle(self, request, run.deadline, run.clock).await;
            let Settled { outcome, cost, table_error } = match settled {
                Ok(settled) => settled,
                Err(expired) => return self.expired(targets, run, expired),
            };
            run.add(cost);
            match outcome {
                Outcome::Done(done) => {
                    let parts =
                        targets.iter().zip(done.images).map(|(target, image)| target.part(image));
                    return Ok((parts.collect(), done.path.or(Some(WritePath::Unclaimed))));
                }
                Outcome::Refused(limits) => return Err(AcquireError::refused(limits.concat())),
                Outcome::OutdatedLimits(_) => {
                    may_reread_limits = false;
                    self.update(targets, run).await;
                }
                // A limit that is unknown here may have been stored a moment ago.
                Outcome::Unknown(_) | Outcome::Full(..) if may_look_again => {
                    may_look_again = false;
                    for target in &mut *targets {
                        self.look_up_again(target, run).boxed().await?;
                    }
                }
                Outcome::Unknown(limit) => return Err(InvalidRequest::UnknownLimit(limit).into()),
                Outcome::Full(index, limit) => {
                    let (entity, max) = (targets[index].bucket.entity.clone(), LIMITS_MAX);
                    return Err(InvalidRequest::BucketFull { entity, limit, max }.into());
                }
                Outcome::Failed { is_unacked } => {
                    let error = AcquireError::Setup(setup_error(table_error.as_deref()));
                    // After any other error, nothing was taken.
                    return Err(match is_unacked {
                        true => AcquireError::Unavailable(error.into()),
                        false => error,
                    });
                }
                Outcome::Contended | Outcome::Ambiguous => {
                    return Err(AcquireError::Contended { attempts: run.attempts });
                }
            }
        }
    }

    /// Reads levels again if an item follows a change that is not known here.
    async fn update(&self, targets: &mut [BucketRequest], run: &mut CallContext<'_>) {
        for target in targets {
            let known = target.entry.known();
            let Some(image) = known.and_then(|known| known.image) else { continue };
            if target.configuration.is_behind(&image) {
                let (bucket, entry) = (&target.bucket, &target.entry);
                let newer = self.updated(bucket, entry, &target.configuration, &image, run).boxed();
                if let Some(newer) = newer.await {
                    target.configuration = newer;
                }
            }
        }
    }

    fn expired(
        &self,
        targets: &[BucketRequest],
        run: &mut CallContext<'_>,
        Expired { on_leave, table_error, is_silent, cost }: Expired,
    ) -> Result<(Vec<BucketGrant>, Option<WritePath>), AcquireError> {
        run.add(cost);
        if let OnLeave::Done(done) = on_leave {
            let parts = targets.iter().zip(done.images).map(|(target, image)| target.part(image));
            return Ok((parts.collect(), done.path));
        }
        Err(given_up(on_leave == OnLeave::InDoubt, table_error.as_deref(), is_silent, run.attempts))
    }
}

impl CallContext<'_> {
    /// Adds the cost of the lane for this request.
    pub(super) fn add(&mut self, cost: CallCost) {
        self.attempts += cost.attempts;
        self.write_units += cost.write_units;
        self.read_units += cost.read_units;
    }
}
