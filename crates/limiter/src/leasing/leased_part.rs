//! One bucket of a request that leases, with the amounts.

use std::sync::Arc;

use super::atomic_bucket::Demands;
use super::leased_bucket::LeasedBucket;
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
