//! One bucket of a request that leases, with the amounts.

use std::sync::Arc;

use super::atomic_bucket::Demands;
use super::leased_bucket::LeasedBucket;
use super::leaser::Leaser;
use crate::store::BucketGrant;

/// The time between comparisons of a request's buckets with the known data, in milliseconds.
pub(super) const FOUND_MS: i64 = 500;

/// One bucket of a request, with its leased bucket and its demands.
#[derive(Clone)]
pub(super) struct LeasedPart {
    pub(super) grant: BucketGrant,
    pub(super) bucket: Arc<LeasedBucket>,
    pub(super) demands: Demands,
}

impl LeasedPart {
    /// Takes the tokens if they are held. If few are left, leases more in the background, by the
    /// limits of the request.
    // Always: a take would otherwise make one more call.
    #[inline(always)]
    pub(super) fn take(&self, leaser: &Arc<Leaser>, now_ms: i64) -> bool {
        leaser.take(&self.bucket, &self.demands, Some(&self.grant.configuration), now_ms)
    }
}
