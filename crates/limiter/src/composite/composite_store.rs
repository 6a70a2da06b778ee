//! The state of a store of composite buckets, its reads, and the lane of a request.

use std::convert::Infallible;
use std::sync::Arc;

use quick_cache::sync::Cache;
use serde_dynamo::Item;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{BucketId, CompositeBucket, KnownImage, QueueSettings};

use super::bucket_request::BucketRequest;
use super::directory::Directory;
use super::known_buckets::KnownBucket;
use super::lane::Lane;
use crate::call::CallContext;
use crate::counters::Counters;
use crate::error::AcquireError;
use crate::store_error::SetupError;
use crate::table::{Consistency, ReadItems, Table};

use super::settings::{Certainty, StoreSettings};

/// A store of composite buckets.
#[derive(Debug)]
pub struct CompositeStore<T> {
    pub(super) table: Arc<T>,
    pub(super) settings: StoreSettings,
    pub(super) known_buckets: Cache<BucketId, Arc<KnownBucket>>,
    pub(crate) directory: Directory,
    pub(super) counters: Counters,
}

impl<T: Table> CompositeStore<T> {
    /// Reads these items; with `may_repeat`, again and again while that can help.
    pub(super) async fn read(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
        may_repeat: bool,
        context: &mut CallContext<'_>,
    ) -> Result<ReadItems, AcquireError> {
        loop {
            match context.in_time(self.table.read(keys, consistency)).await {
                Ok(found) => {
                    context.spend_reads(found.read_units);
                    return Ok(found);
                }
                Err(table_error) if !may_repeat => return Err(context.fail_with(table_error)),
                Err(table_error) => {
                    if !context.wait_out(table_error).await {
                        return Err(context.error_of_last_failure());
                    }
                }
            }
        }
    }

    /// Reads a bucket's current image by a strongly consistent read, and remembers it.
    pub(super) async fn read_image(
        &self,
        bucket: &BucketId,
        known_bucket: &KnownBucket,
        context: &mut CallContext<'_>,
    ) -> Result<Option<Arc<CompositeBucket>>, AcquireError> {
        let BucketId { entity, resource } = bucket.clone();
        let keys = [ItemKey::Bucket(entity, resource)];
        let found = self.read(&keys, Consistency::Strong, true, context).await?;
        let image = parse_image(bucket, found.items.first().and_then(Option::as_ref))?;
        let (as_of, is_authoritative) = (context.now(), true);
        let known = KnownImage { image: image.clone(), as_of, is_authoritative };
        known_bucket.newest.learn_unless_older(known);
        Ok(image)
    }

    /// The data that this process keeps of a bucket.
    pub(super) fn known_bucket(&self, bucket: &BucketId) -> Arc<KnownBucket> {
        let new = || Ok::<_, Infallible>(Arc::default());
        let Ok(known_bucket) = self.known_buckets.get_or_insert_with(bucket, new);
        known_bucket
    }

    /// The lane of the requests on these buckets.
    pub(super) fn lane(&self, targets: &[BucketRequest]) -> Arc<Lane> {
        let settings = self.queue_settings();
        match targets {
            [child, parent] => {
                let parent = (&parent.bucket, &*parent.known_bucket);
                child.known_bucket.lane_with(&child.bucket, parent, settings)
            }
            targets => targets[0].known_bucket.lane(&targets[0].bucket, settings),
        }
    }

    pub(super) fn queue_settings(&self) -> QueueSettings {
        let refusal_age_max_ms = self.settings.refusal_age_max.as_millis();
        QueueSettings {
            interval: self.settings.claim_interval,
            refusal_age_max_ms: u64::try_from(refusal_age_max_ms).unwrap_or(u64::MAX),
            is_transactional: self.settings.certainty == Certainty::Transactional,
        }
    }

    /// A store on this table.
    #[must_use]
    pub fn with_table(table: T) -> Self {
        Self::with_settings(table, StoreSettings::default())
    }

    /// A store on this table, with these settings.
    #[must_use]
    pub fn with_settings(table: T, settings: StoreSettings) -> Self {
        let known_buckets = Cache::new(settings.buckets_max);
        let (directory, counters) = (Directory::default(), Counters::default());
        Self { table: Arc::new(table), settings, known_buckets, directory, counters }
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &T {
        &self.table
    }
}

pub(super) fn parse_image(
    bucket: &BucketId,
    item: Option<&Item>,
) -> Result<Option<Arc<CompositeBucket>>, SetupError> {
    let Some(item) = item else { return Ok(None) };
    CompositeBucket::from_item(item).map(|image| image.map(Arc::new)).map_err(|source| {
        SetupError::BrokenItem { bucket: bucket.to_string(), source: source.into() }
    })
}
