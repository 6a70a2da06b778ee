//! One bucket of this process: its image, and the decision about one request on it.

use std::sync::Arc;

use sluicegate_core::{
    Acquire, Amounts, BucketId, ClaimInterval, CompositeBucket, Configuration, Decision, EntityId,
    EpochMillis, LIMITS_MAX, RefillHint, RequestId, Rules, decide, evaluate, reconfigure,
};

use crate::call::new_id;
use crate::error::{AcquireError, InvalidRequest, LimitStatus};

/// Only this process writes these buckets, so their images are complete and a claim needs no
/// interval.
const INTERVAL: ClaimInterval = ClaimInterval(0);
/// The most rounds until a decision stands: a clock is corrected, room is made, tokens are taken.
const ROUNDS_MAX: u32 = 4;

/// The state of a bucket at the last grant of the store, less the debits made since.
#[derive(Debug)]
pub(super) struct LastSeen {
    pub(super) image: Option<Arc<CompositeBucket>>,
    pub(super) configuration: Arc<Configuration>,
    pub(super) parent: Option<EntityId>,
}

/// A bucket of this process.
#[derive(Debug)]
pub(super) struct LocalBucket {
    pub(super) image: Arc<CompositeBucket>,
    /// The configuration that the image follows.
    pub(super) configuration: Arc<Configuration>,
    /// The last grant of the store when this bucket was made. If there is another one now, it is
    /// newer.
    pub(super) started_from: Option<Arc<LastSeen>>,
    /// The value of `LocalBuckets::noted` at which `started_from` was last known to be the newest
    /// grant.
    pub(super) noted_when_checked: Option<u64>,
    /// True if the newest grant at `noted_when_checked` named a parent.
    pub(super) has_parent: bool,
}

/// One bucket of a request.
pub(super) struct LocalTarget {
    pub(super) bucket: BucketId,
    pub(super) amounts: Amounts,
    pub(super) configuration: Arc<Configuration>,
    pub(super) seen: Option<Arc<LastSeen>>,
}

/// This process does not know the rule of a requested limit.
#[derive(Debug, thiserror::Error)]
#[error(
    "the store is unavailable, and limit {0} of {1} is not known here: define it with the request"
)]
struct UnknownHere(sluicegate_core::LimitName, BucketId);

impl LocalBucket {
    /// True if no grant of the store and no debit was noted since this bucket was made.
    pub(super) fn is_newest(&self, seen: Option<&Arc<LastSeen>>) -> bool {
        match (&self.started_from, seen) {
            (Some(start), Some(seen)) => Arc::ptr_eq(start, seen),
            (_, None) => true,
            (None, Some(_)) => false,
        }
    }
}

impl LocalTarget {
    /// The bucket of this process with this image.
    pub(super) fn local_bucket(&self, image: Arc<CompositeBucket>) -> LocalBucket {
        LocalBucket {
            image,
            configuration: self.configuration.clone(),
            started_from: self.seen.clone(),
            noted_when_checked: None,
            has_parent: false,
        }
    }

    pub(super) fn request<'a>(&'a self, id: &'a RequestId) -> Acquire<'a> {
        Acquire {
            bucket: &self.bucket,
            amounts: &self.amounts,
            configuration: &self.configuration,
            id,
            interval: INTERVAL,
            hint: RefillHint::TrustImage,
        }
    }

    /// The bucket, changed to the limits of a refused request; `None`: it has these limits already.
    pub(super) fn reconfigured(
        &self,
        image: &CompositeBucket,
        now: EpochMillis,
    ) -> Option<Arc<CompositeBucket>> {
        let plan = reconfigure(image, self.request(&new_id()), now)?;
        plan.apply(Some(image)).map(Arc::new)
    }

    /// Takes the amounts and returns the changed bucket; `None`: some limit is short.
    pub(super) fn take(
        &self,
        mut image: Option<Arc<CompositeBucket>>,
        id: &RequestId,
        now: EpochMillis,
    ) -> Result<Option<Arc<CompositeBucket>>, AcquireError> {
        let acquire = self.request(id);
        for _ in 0..ROUNDS_MAX {
            let (plan, is_taken) = match decide(image.as_deref(), acquire, now) {
                Decision::Write(plan) => (plan, true),
                Decision::Repair(plan) => (plan, false),
                Decision::AlreadyApplied => return Ok(image),
                Decision::Short(_) => return Ok(None),
                Decision::UnknownLimit(limit) => {
                    let unknown = UnknownHere(limit, self.bucket.clone());
                    return Err(AcquireError::Unavailable(unknown.into()));
                }
                Decision::NoRoom(limit) => {
                    let entity = self.bucket.entity.clone();
                    return Err(
                        InvalidRequest::BucketFull { entity, limit, max: LIMITS_MAX }.into()
                    );
                }
            };
            // No other task writes in between, so the decision on this image holds.
            image = plan.apply(image.as_deref()).map(Arc::new);
            if is_taken {
                return Ok(image);
            }
        }
        Ok(None)
    }

    pub(super) fn evaluate(
        &self,
        image: Option<&CompositeBucket>,
        now: EpochMillis,
    ) -> Vec<LimitStatus> {
        let mut limits = evaluate(&self.bucket, image, &self.amounts, &self.configuration, now);
        limits.retain(|status| self.amounts.contains_key(&status.limit));
        limits
    }
}

/// True if a configuration has these limits with the same rules.
pub(super) fn has_rules(configuration: &Configuration, limits: &Rules) -> bool {
    limits.iter().all(|(limit, rule)| configuration.rule(limit) == Some(*rule))
}
