//! One bucket of a request.

use std::sync::Arc;

use sluicegate_core::{Amounts, BucketId, CompositeBucket, Configuration};

use super::directory::Levels;
use super::known_buckets::KnownBucket;
use crate::store::BucketGrant;

/// One bucket of a request.
pub(super) struct BucketRequest {
    pub(super) bucket: BucketId,
    pub(super) amounts: Amounts,
    pub(super) configuration: Arc<Configuration>,
    pub(super) known_bucket: Arc<KnownBucket>,
    pub(super) is_parent: bool,
    /// Of the entity's own bucket: the bucket of its parent, if the parent's bucket has none of the
    /// requested limits. Nothing is taken from it, so this grant has no amounts.
    pub(super) uncharged_parent: Option<Arc<BucketGrant>>,
}

/// Takes out a parent that is asked for nothing.
pub(super) fn take_out_uncharged(targets: &mut Vec<BucketRequest>) {
    if let Some(parent) = targets.pop_if(|target| target.is_parent && target.amounts.is_empty()) {
        let image = parent.image();
        targets[0].uncharged_parent = Some(Arc::new(parent.into_part(image)));
    }
}

impl BucketRequest {
    pub(super) const fn new(
        bucket: BucketId,
        amounts: Amounts,
        configuration: Arc<Configuration>,
        known_bucket: Arc<KnownBucket>,
    ) -> Self {
        let (is_parent, uncharged_parent) = (false, None);
        Self { bucket, amounts, configuration, known_bucket, is_parent, uncharged_parent }
    }

    /// The newest image of the item.
    pub(super) fn image(&self) -> Option<Arc<CompositeBucket>> {
        self.known_bucket.newest.known()?.image
    }

    /// Gives the request its explicit limits and those of the levels, and remembers them for the
    /// bucket.
    pub(super) fn configure(&mut self, levels: Option<Levels>) {
        let explicit = self.configuration.explicit.clone();
        let stored = levels.as_ref().map(Levels::rules);
        self.configuration = Arc::new(Configuration { explicit, stored });
        let valid_while = levels.map(|levels| (levels.changes, levels.valid_during()));
        self.known_bucket.set_configuration((self.configuration.clone(), valid_while));
    }

    /// Leaves out the limits that a parent does not have: it is not asked for these.
    pub(super) fn leave_out_what_parent_lacks(&mut self) {
        if self.is_parent {
            let (image, configuration) = (self.image(), &self.configuration);
            self.amounts.retain(|limit, _| configuration.has_limit(image.as_deref(), limit));
        }
    }

    /// The request as a part of a grant, with this image of the bucket.
    pub(super) fn into_part(self, image: Option<Arc<CompositeBucket>>) -> BucketGrant {
        let Self { bucket, amounts, configuration, uncharged_parent, .. } = self;
        BucketGrant { bucket, amounts, image, configuration, uncharged_parent }
    }
}
