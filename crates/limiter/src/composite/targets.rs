//! Finds the buckets of a request and their limits.
//!
//! An acquire does not look up the limits and the parent that its request brings along. Other data
//! is remembered for a minute. Data that is not remembered is read by one eventually consistent
//! read for each bucket, at half a unit an item. If the bucket itself is not known, the same read
//! returns it, too. A parent's data is read after the entity's.

use std::sync::Arc;

use futures_util::FutureExt as _;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, EntityId, EntityRecord, EpochMillis,
    KnownImage, Rules,
};

use super::bucket_request::BucketRequest;
use super::composite_store::{CompositeStore, image};
use super::directory::{Learned, Levels};
use super::known_buckets::KnownBucket;
use crate::call::CallContext;
use crate::error::AcquireError;
use crate::store::{Cascade, Request};
use crate::table::{Consistency, ReadItems, Table};

/// Says if the limits of a bucket are read from the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// If the request asks for tokens of a limit that it does not bring along.
    WhereNeeded,
    /// Always: the answer shows all limits.
    Always,
}

impl<T: Table> CompositeStore<T> {
    /// The buckets of a request: the entity's own, and its parent's if the request cascades. An
    /// acquire leaves out a parent that has none of the requested limits.
    pub(super) async fn targets(
        &self,
        request: &Request,
        lookup: Lookup,
        context: &mut CallContext<'_>,
    ) -> Result<Vec<BucketRequest>, AcquireError> {
        let resource = &request.resource;
        let bucket =
            |entity: &EntityId| BucketId { entity: entity.clone(), resource: resource.clone() };
        let wanted =
            ConfigQuery { bucket: bucket(&request.entity), explicit: &request.limits, lookup };
        let asks_record = request.cascade == Cascade::Stored;
        let (own, record) = self.target(&wanted, &request.amounts, asks_record, context).await?;
        let parent = match &request.cascade {
            Cascade::No => None,
            Cascade::To(parent) => Some(parent.clone()),
            Cascade::Stored => {
                record.filter(|record| record.cascade).and_then(|record| record.parent.clone())
            }
        };
        let mut targets = vec![own];
        if let Some(parent) = parent {
            let explicit = request.parent_limits.as_ref().unwrap_or(&request.limits);
            let wanted = ConfigQuery { bucket: bucket(&parent), explicit, lookup };
            let (mut target, _) = self.target(&wanted, &request.amounts, false, context).await?;
            // A parent is not asked for a limit that it does not have.
            let (image, configuration) = (target.image(), &target.configuration);
            target.amounts.retain(|limit, _| configuration.has_limit(image.as_deref(), limit));
            if !target.amounts.is_empty() || lookup == Lookup::Always {
                targets.push(target);
            }
        }
        Ok(targets)
    }

    /// The limits of a bucket: those that a request named, and the stored ones.
    #[cfg(feature = "leasing")]
    pub(super) async fn limits(
        &self,
        bucket: &BucketId,
        explicit: &Arc<Rules>,
        context: &mut CallContext<'_>,
    ) -> Result<Arc<Configuration>, AcquireError> {
        let wanted = ConfigQuery { bucket: bucket.clone(), explicit, lookup: Lookup::Always };
        let (target, _) = self.target(&wanted, &Amounts::new(), false, context).await?;
        Ok(target.configuration)
    }

    /// A bucket and, if needed, the record of its entity. The results of a look-up are used as they
    /// were found: the directory may forget them before a second look.
    async fn target(
        &self,
        wanted: &ConfigQuery<'_>,
        amounts: &Amounts,
        asks_record: bool,
        context: &mut CallContext<'_>,
    ) -> Result<(BucketRequest, Option<Arc<EntityRecord>>), AcquireError> {
        let bucket = wanted.bucket.clone();
        let known_bucket = self.known_bucket(&bucket);
        let now = context.now();
        let mut missing = Vec::new();
        let mut record = None;
        if asks_record {
            match self.directory.entity(&bucket.entity, now) {
                Some(known) => record = known,
                None => missing.push(ItemKey::Entity(bucket.entity.clone())),
            }
        }
        let needs_stored = wanted.lookup == Lookup::Always
            || amounts.keys().any(|limit| !wanted.explicit.contains_key(limit));
        let remembered = self.remembered(&known_bucket, wanted, needs_stored, now);
        let mut levels = None;
        if remembered.is_none() && needs_stored {
            let found = self.directory.levels(&bucket, now);
            missing.extend(found.missing());
            levels = Some(found);
        }
        if !missing.is_empty() {
            // Boxed: this future is rare, and larger than the rest of a request.
            let read =
                self.read_stored(&bucket, &known_bucket, missing, Consistency::Eventual, context);
            for learned in read.boxed().await? {
                match (learned, &mut levels) {
                    (Learned::Entity(known), _) => record = known,
                    (Learned::Limits(scope, answer), Some(levels)) => levels.learn(&scope, answer),
                    (Learned::Limits(..), None) => {}
                }
            }
        }
        let configuration = remembered
            .unwrap_or_else(|| merge_and_remember(&known_bucket, wanted.explicit, levels));
        let target =
            BucketRequest { bucket, amounts: amounts.clone(), configuration, known_bucket };
        Ok((target, record))
    }

    /// The configuration as it was last put together, if it is still valid.
    fn remembered(
        &self,
        known_bucket: &KnownBucket,
        wanted: &ConfigQuery<'_>,
        needs_stored: bool,
        now: EpochMillis,
    ) -> Option<Arc<Configuration>> {
        let (configuration, current) = known_bucket.configuration()?;
        let is_current = match current {
            None => !needs_stored,
            Some((changes, valid)) => {
                needs_stored && changes == self.directory.changes() && valid.contains(&now)
            }
        };
        (is_current && configuration.explicit == *wanted.explicit).then_some(configuration)
    }

    /// Reads records and limits from the table, and the bucket if it is not known.
    async fn read_stored(
        &self,
        bucket: &BucketId,
        known_bucket: &KnownBucket,
        mut keys: Vec<ItemKey>,
        consistency: Consistency,
        context: &mut CallContext<'_>,
    ) -> Result<Vec<Learned>, AcquireError> {
        if context.is_over() {
            return Err(context.given_up());
        }
        // If the bucket did not exist, another process may have made it since.
        if known_bucket.newest.known().is_none_or(|known| known.image.is_none()) {
            keys.push(ItemKey::Bucket(bucket.entity.clone(), bucket.resource.clone()));
        }
        let found = self.read(&keys, consistency, context).await?;
        let now = context.now();
        let mut learned = Vec::with_capacity(keys.len());
        for (key, item) in keys.iter().zip(&found.items) {
            if matches!(key, ItemKey::Bucket(..)) {
                let image = image(bucket, item.as_ref())?;
                let is_authoritative = consistency == Consistency::Strong;
                known_bucket.newest.learn_if_newer(KnownImage {
                    image,
                    as_of: now,
                    is_authoritative,
                });
            } else {
                learned.extend(self.directory.learn(key, item.as_ref(), consistency, now)?);
            }
        }
        Ok(learned)
    }

    /// A newer configuration, for a bucket whose item follows newer stored limits than
    /// `configuration`. It comes from the directory if another request has learned it meanwhile, or
    /// else from a strongly consistent read. The levels just read may still look older than those
    /// that the item follows. Then somebody deleted a level by hand or restored the table. A later
    /// write brings such an item to the limits that were read ([`StoredRules::outranks`]).
    ///
    /// `None`, and the item stays as it is: another request is reading, or the levels cannot be
    /// read now.
    pub(super) async fn newer_configuration(
        &self,
        bucket: &BucketId,
        known_bucket: &KnownBucket,
        configuration: &Configuration,
        image: &CompositeBucket,
        context: &mut CallContext<'_>,
    ) -> Option<Arc<Configuration>> {
        let _turn = self.directory.refreshes.try_acquire().ok()?;
        let levels = self.directory.levels(bucket, context.now());
        if levels.are_known() {
            let known = merge_and_remember(known_bucket, &configuration.explicit, Some(levels));
            if !known.is_behind(image) {
                return Some(known);
            }
        }
        if context.is_over() {
            return None;
        }
        let mut levels = self.directory.unread(bucket);
        let keys: Vec<_> = levels.missing().collect();
        let found = context.in_time(self.table.read(&keys, Consistency::Strong)).await;
        let found = found.inspect_err(|table_error| {
            tracing::debug!(%bucket, %table_error, "stored limits could not be read again");
        });
        let found: ReadItems = found.ok()?;
        context.spend_reads(found.read_units);
        let now = context.now();
        for (key, item) in keys.iter().zip(&found.items) {
            let learned = self.directory.learn(key, item.as_ref(), Consistency::Strong, now);
            let learned = learned.inspect_err(
                |error| tracing::warn!(%bucket, %error, "stored limits cannot be used"),
            );
            if let Some(Learned::Limits(scope, answer)) = learned.ok()? {
                levels.learn(&scope, answer);
            }
        }
        let known = merge_and_remember(known_bucket, &configuration.explicit, Some(levels));
        if !known.is_behind(image) {
            return Some(known);
        }
        let mut known = known.as_ref().clone();
        if let Some(stored) = &mut known.stored {
            stored.outranks = Some(image.config_stamp);
        }
        Some(Arc::new(known))
    }

    /// Reads the limits of a bucket again, by a strongly consistent read.
    pub(super) async fn read_limits_again(
        &self,
        target: &mut BucketRequest,
        context: &mut CallContext<'_>,
    ) -> Result<(), AcquireError> {
        let mut levels = self.directory.unread(&target.bucket);
        let keys = levels.missing().collect();
        for learned in self
            .read_stored(&target.bucket, &target.known_bucket, keys, Consistency::Strong, context)
            .await?
        {
            if let Learned::Limits(scope, answer) = learned {
                levels.learn(&scope, answer);
            }
        }
        target.configuration =
            merge_and_remember(&target.known_bucket, &target.configuration.explicit, Some(levels));
        Ok(())
    }
}

/// Puts the limits of all levels together, and remembers the result for the bucket.
fn merge_and_remember(
    known_bucket: &KnownBucket,
    explicit: &Arc<Rules>,
    levels: Option<Levels>,
) -> Arc<Configuration> {
    let stored = levels.as_ref().map(Levels::rules);
    let configuration = Arc::new(Configuration { explicit: explicit.clone(), stored });
    let current = levels.map(|levels| (levels.changes, levels.valid()));
    known_bucket.set_configuration((configuration.clone(), current));
    configuration
}

/// A bucket and the limits that the request names.
struct ConfigQuery<'a> {
    bucket: BucketId,
    explicit: &'a Arc<Rules>,
    lookup: Lookup,
}

#[cfg(test)]
#[path = "targets_tests.rs"]
mod tests;
