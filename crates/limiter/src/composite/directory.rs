//! What the table says about entities and limits, remembered for a minute: "nothing" too.
//!
//! A bucket follows the newest configuration that anybody has seen, so being a minute behind costs
//! nothing but that minute.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;
use serde_dynamo::Item;
use sluicegate_core::keys::{ItemKey, LimitsScope};
use sluicegate_core::{BucketId, EntityId, EntityRecord, EpochMillis, StoredLimits, StoredRules};

use crate::table::SetupError;

/// How long an answer is believed, in milliseconds.
const BELIEVED_MS: i64 = 60_000;
/// Entities, and scopes of limits, that are remembered.
const REMEMBERED_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct Directory {
    entities: Cache<EntityId, Dated<EntityRecord>>,
    limits: Cache<LimitsScope, Dated<StoredLimits>>,
    /// Moves with every change that this process made or noticed.
    generation: AtomicU64,
}

/// What the table said, and when.
#[derive(Debug)]
struct Dated<T> {
    said: Option<Arc<T>>,
    as_of: EpochMillis,
}

impl<T> Clone for Dated<T> {
    fn clone(&self) -> Self {
        Self { said: self.said.clone(), as_of: self.as_of }
    }
}

impl<T> Dated<T> {
    fn is_believed(&self, now: EpochMillis) -> bool {
        // A clock that went back believes nothing.
        (0..BELIEVED_MS).contains(&(now.get() - self.as_of.get()))
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            entities: Cache::new(REMEMBERED_MAX),
            limits: Cache::new(REMEMBERED_MAX),
            generation: AtomicU64::new(0),
        }
    }
}

impl Directory {
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What is believed of an entity; `None`: ask.
    pub(super) fn entity(
        &self,
        entity: &EntityId,
        now: EpochMillis,
    ) -> Option<Option<Arc<EntityRecord>>> {
        let dated = self.entities.get(entity)?;
        dated.is_believed(now).then_some(dated.said)
    }

    /// The levels of a bucket that must be asked for.
    pub(super) fn missing(&self, bucket: &BucketId, now: EpochMillis) -> Vec<ItemKey> {
        let is_missing = |scope: &LimitsScope| {
            !self.limits.get(scope).is_some_and(|dated| dated.is_believed(now))
        };
        LimitsScope::levels(bucket).into_iter().filter(is_missing).map(ItemKey::Limits).collect()
    }

    /// From when on, and until when, all levels of a bucket are believed.
    pub(super) fn believed(&self, bucket: &BucketId) -> Range<EpochMillis> {
        let as_of = |scope: &LimitsScope| {
            self.limits.get(scope).map_or(EpochMillis::MIN, |dated| dated.as_of)
        };
        let levels = LimitsScope::levels(bucket);
        let newest = levels.iter().map(as_of).max().unwrap_or(EpochMillis::MIN);
        let oldest = levels.iter().map(as_of).min().unwrap_or(EpochMillis::MIN);
        newest..EpochMillis::new(oldest.get() + BELIEVED_MS).unwrap_or(EpochMillis::MAX)
    }

    /// All levels of a bucket taken together: each limit from the narrowest level that names it.
    pub(super) fn rules(&self, bucket: &BucketId) -> StoredRules {
        let said = |scope: &LimitsScope| self.limits.get(scope).and_then(|dated| dated.said);
        let levels: Vec<_> = LimitsScope::levels(bucket).iter().filter_map(said).collect();
        StoredRules::of_levels(levels.iter().map(AsRef::as_ref))
    }

    /// Takes an answer in: an item, or that there is none.
    pub(super) fn learn(
        &self,
        key: &ItemKey,
        item: Option<&Item>,
        now: EpochMillis,
    ) -> Result<(), SetupError> {
        let broken = |source| SetupError::BrokenItem {
            bucket: format!("{} / {}", key.pk(), key.sk()),
            source: Box::new(source),
        };
        match key {
            ItemKey::Entity(entity) => {
                let said = item.map(EntityRecord::from_item).transpose().map_err(broken)?.flatten();
                self.entities
                    .insert(entity.clone(), Dated { said: said.map(Arc::new), as_of: now });
            }
            ItemKey::Limits(scope) => {
                let said = item.map(StoredLimits::from_item).transpose().map_err(broken)?.flatten();
                let before = self.limits.get(scope).and_then(|dated| dated.said);
                let is_news =
                    before.map(|said| said.updated_at) != said.as_ref().map(|said| said.updated_at);
                self.limits.insert(scope.clone(), Dated { said: said.map(Arc::new), as_of: now });
                if is_news {
                    self.generation.fetch_add(1, Ordering::AcqRel);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Forgets what was believed of an entity.
    pub(super) fn forget_entity(&self, entity: &EntityId) {
        self.entities.remove(entity);
    }

    /// Forgets what was believed of a level.
    pub(super) fn forget_limits(&self, scope: &LimitsScope) {
        self.limits.remove(scope);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Forgets the levels of a bucket that were learned before `now`, at most once a second: an
    /// item follows a newer configuration than this one.
    pub(super) fn forget_older(&self, bucket: &BucketId, now: EpochMillis) {
        for scope in LimitsScope::levels(bucket) {
            let is_old = |dated: Dated<_>| now.get().abs_diff(dated.as_of.get()) >= 1_000;
            if self.limits.get(&scope).is_some_and(is_old) {
                self.forget_limits(&scope);
            }
        }
    }
}
