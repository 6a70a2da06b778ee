//! Finds the buckets of a request and their limits.
//!
//! An acquire does not look up the limits and the parent that its request brings along. Other data
//! is remembered for a minute. Data that is not remembered is read by one eventually consistent
//! read for each bucket, at half a unit an item. If no item of the bucket is known, the same read
//! returns it, too. A parent's data is read after the entity's.

use std::sync::Arc;

use futures_util::FutureExt as _;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{
    Amounts, BucketId, Configuration, EntityId, EntityRecord, EpochMillis, KnownImage, Rules,
};

use super::bucket_request::{BucketRequest, take_out_uncharged};
use super::composite_store::{CompositeStore, parse_image};
use super::directory::Learned;
use super::known_buckets::KnownBucket;
use crate::call::CallContext;
use crate::error::AcquireError;
use crate::store::{Cascade, Request};
use crate::table::{Consistency, Table};

/// Says if the stored limits of a bucket are looked up: in memory if they are younger than a
/// minute, else in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// If the request asks for tokens of a limit that it does not bring along.
    WhereNeeded,
    /// Always: the caller wants all limits of the bucket.
    Always,
}

impl<T: Table> CompositeStore<T> {
    /// The buckets of a request: the entity's own, and its parent's if the request cascades. An
    /// acquire takes nothing from a parent that has none of the requested limits.
    pub(super) async fn find_targets(
        &self,
        request: &Request,
        lookup: Lookup,
        context: &mut CallContext<'_>,
    ) -> Result<Vec<BucketRequest>, AcquireError> {
        let (resource, amounts) = (&request.resource, &request.amounts);
        let bucket =
            |entity: &EntityId| BucketId { entity: entity.clone(), resource: resource.clone() };
        let (own, explicit) = (bucket(&request.entity), &request.limits);
        let needs_record = request.cascade == Cascade::Stored;
        let target = self.target(own, amounts, explicit, lookup, needs_record, context);
        let (own, record) = target.await?;
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
            let target = self.target(bucket(&parent), amounts, explicit, lookup, false, context);
            let (mut target, _) = target.await?;
            target.is_parent = true;
            target.leave_out_what_parent_lacks();
            targets.push(target);
            if lookup == Lookup::WhereNeeded {
                take_out_uncharged(&mut targets);
            }
        }
        Ok(targets)
    }

    /// A bucket and, if needed, the record of its entity. The results of a look-up are used as they
    /// were found: the directory may forget them before a second look.
    pub(super) async fn target(
        &self,
        bucket: BucketId,
        amounts: &Amounts,
        explicit: &Arc<Rules>,
        lookup: Lookup,
        needs_record: bool,
        context: &mut CallContext<'_>,
    ) -> Result<(BucketRequest, Option<Arc<EntityRecord>>), AcquireError> {
        let known_bucket = self.known_bucket(&bucket);
        let now = context.now();
        let mut missing = Vec::new();
        let mut record = None;
        if needs_record {
            match self.directory.entity(&bucket.entity, now) {
                Some(known) => record = known,
                None => missing.push(ItemKey::Entity(bucket.entity.clone())),
            }
        }
        let needs_stored =
            lookup == Lookup::Always || amounts.keys().any(|limit| !explicit.contains_key(limit));
        let remembered = self.remembered(&known_bucket, explicit, needs_stored, now);
        let needs_configuration = remembered.is_none();
        let mut levels = None;
        if needs_configuration && needs_stored {
            let found = self.directory.levels(&bucket, now);
            missing.extend(found.missing());
            levels = Some(found);
        }
        let configuration =
            remembered.unwrap_or_else(|| Arc::new(Configuration::explicit(explicit.clone())));
        let amounts = amounts.clone();
        let mut target = BucketRequest::new(bucket, amounts, configuration, known_bucket);
        if !missing.is_empty() {
            // Boxed: this future is rare, and larger than the rest of a request.
            let read = self.read_stored(&target, missing, Consistency::Eventual, true, context);
            for learned in read.boxed().await? {
                match (learned, &mut levels) {
                    (Learned::Entity(known), _) => record = known,
                    (Learned::Limits(scope, answer), Some(levels)) => levels.learn(&scope, answer),
                    (Learned::Limits(..), None) => {}
                }
            }
        }
        if needs_configuration {
            target.configure(levels);
        }
        Ok((target, record))
    }

    /// The configuration as it was last put together, if it is still valid.
    fn remembered(
        &self,
        known_bucket: &KnownBucket,
        explicit: &Arc<Rules>,
        needs_stored: bool,
        now: EpochMillis,
    ) -> Option<Arc<Configuration>> {
        let (configuration, valid_while) = known_bucket.configuration()?;
        let is_current = match valid_while {
            None => !needs_stored,
            Some((changes, valid)) => {
                needs_stored && changes == self.directory.changes() && valid.contains(&now)
            }
        };
        (is_current && configuration.explicit == *explicit).then_some(configuration)
    }

    /// Reads records and limits from the table, and the bucket if no item of it is known.
    async fn read_stored(
        &self,
        BucketRequest { bucket, known_bucket, .. }: &BucketRequest,
        mut keys: Vec<ItemKey>,
        consistency: Consistency,
        may_repeat: bool,
        context: &mut CallContext<'_>,
    ) -> Result<Vec<Learned>, AcquireError> {
        if context.is_over() {
            return Err(context.error_of_last_failure());
        }
        // If the bucket did not exist, another process may have made it since.
        if known_bucket.newest.known().is_none_or(|known| known.image.is_none()) {
            keys.push(ItemKey::Bucket(bucket.entity.clone(), bucket.resource.clone()));
        }
        let found = self.read(&keys, consistency, may_repeat, context).await?;
        let now = context.now();
        let mut learned = Vec::with_capacity(keys.len());
        for (key, item) in keys.iter().zip(&found.items) {
            if matches!(key, ItemKey::Bucket(..)) {
                let image = parse_image(bucket, item.as_ref())?;
                let is_authoritative = consistency == Consistency::Strong;
                let known = KnownImage { image, as_of: now, is_authoritative };
                known_bucket.newest.learn_unless_older(known);
            } else {
                learned.extend(self.directory.learn(key, item.as_ref(), consistency, now)?);
            }
        }
        Ok(learned)
    }

    /// If the item of a target has newer stored limits, updates the target's configuration. The
    /// target keeps its configuration if another request is reading, or if the levels cannot be
    /// read now.
    ///
    /// The newer limits come from the directory if another request has learned them meanwhile, or
    /// else from a strongly consistent read. If even the levels of that read look older than those
    /// that the item follows, somebody has deleted a level by hand or restored the table. Then the
    /// levels win: a later write brings the item to their limits ([`StoredRules::outranks`]).
    pub(super) async fn follow_newer_limits(
        &self,
        targets: &mut [BucketRequest],
        context: &mut CallContext<'_>,
    ) {
        for target in targets {
            let is_behind = |image: &Arc<_>| target.configuration.is_behind(image);
            let Some(image) = target.image().filter(is_behind) else { continue };
            let Ok(_turn) = self.directory.refreshes.try_acquire() else { continue };
            let before = target.configuration.clone();
            let levels = self.directory.levels(&target.bucket, context.now());
            if levels.missing().next().is_none() {
                target.configure(Some(levels));
            }
            if !target.configuration.is_behind(&image) {
                continue;
            }
            match self.read_limits_again(target, false, context).boxed().await {
                Ok(()) if target.configuration.is_behind(&image) => {
                    let configuration = Arc::make_mut(&mut target.configuration);
                    if let Some(stored) = &mut configuration.stored {
                        stored.outranks = Some(image.config_stamp);
                    }
                }
                Ok(()) => {}
                Err(error) => {
                    target.configuration = before;
                    let bucket = &target.bucket;
                    if let AcquireError::Setup(error) = error {
                        tracing::warn!(%bucket, %error, "stored limits cannot be used");
                    } else {
                        tracing::debug!(%bucket, %error, "stored limits could not be read again");
                    }
                }
            }
        }
    }

    /// Reads the limits of a bucket again, by a strongly consistent read.
    pub(super) async fn read_limits_again(
        &self,
        target: &mut BucketRequest,
        may_repeat: bool,
        context: &mut CallContext<'_>,
    ) -> Result<(), AcquireError> {
        let mut levels = self.directory.unread(&target.bucket);
        let keys = levels.missing().collect();
        let read = self.read_stored(target, keys, Consistency::Strong, may_repeat, context);
        for learned in read.await? {
            if let Learned::Limits(scope, answer) = learned {
                levels.learn(&scope, answer);
            }
        }
        target.configure(Some(levels));
        Ok(())
    }
}

#[cfg(test)]
#[path = "targets_tests.rs"]
mod tests;
