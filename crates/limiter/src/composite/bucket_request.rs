//! One bucket of a request.

use std::sync::Arc;

use sluicegate_core::{Amounts, BucketId, CompositeBucket, Configuration};

use super::known_buckets::KnownBucket;
use crate::store::BucketGrant;

/// One bucket of a request.
pub(super) struct BucketRequest {
    pub(super) bucket: BucketId,
    pub(super) amounts: Amounts,
    pub(super) configuration: Arc<Configuration>,
    pub(super) known_bucket: Arc<KnownBucket>,
}

impl BucketRequest {
    /// The newest image of the item.
    pub(super) fn image(&self) -> Option<Arc<CompositeBucket>> {
        self.known_bucket.newest.known()?.image
    }

    /// The request as a part of a grant, with this image of the bucket.
    pub(super) fn into_part(self, image: Option<Arc<CompositeBucket>>) -> BucketGrant {
        let Self { bucket, amounts, configuration, .. } = self;
        BucketGrant { bucket, amounts, image, configuration }
    }
}
