//! Remembers for a minute the record of each entity and the stored limits of each level, or that
//! the table has none.
//!
//! So this process may learn of a change a minute late. An older copy here never undoes a change
//! that a bucket follows already.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;
use serde_dynamo::Item;
use sluicegate_core::keys::{ItemKey, LimitsScope};
use sluicegate_core::{BucketId, EntityId, EntityRecord, EpochMillis, StoredLimits, StoredRules};

use tokio::sync::Semaphore;

use crate::store_error::SetupError;
use crate::table::Consistency;

/// How long an answer is valid, in milliseconds.
const VALID_MS: i64 = 60_000;
/// The most entities, and the most scopes of limits, that are remembered.
const REMEMBERED_MAX: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Directory {
    entities: Cache<EntityId, Dated<EntityRecord>>,
    limits: Cache<LimitsScope, Dated<StoredLimits>>,
    /// Grows with every change of a record or of stored limits that this process made, and with
    /// every change of stored limits that it noticed.
    changes: AtomicU64,
    /// Held by a request in `follow_newer_limits`: one at a time. Others do not wait for it.
    pub(super) refreshes: Semaphore,
}

/// The levels of a bucket as they were looked up. They are carried along, because the cache may
/// forget any of them at any time.
#[derive(Debug)]
pub(super) struct Levels {
    scopes: [LimitsScope; 4],
    /// `None`: must be read.
    answers: [Option<Dated<StoredLimits>>; 4],
    /// [`Directory::changes`] before the levels were looked up.
    pub(super) changes: u64,
}

/// The content of an answer.
#[derive(Debug)]
pub(super) enum Learned {
    Entity(Option<Arc<EntityRecord>>),
    Limits(LimitsScope, Dated<StoredLimits>),
}

/// The content of an answer, and its time.
#[derive(Debug, Clone)]
pub(super) struct Dated<T> {
    record: Option<Arc<T>>,
    as_of: EpochMillis,
}

impl<T> Dated<T> {
    fn is_valid(&self, now: EpochMillis) -> bool {
        // After the clock was set back, no answer is valid.
        (0..VALID_MS).contains(&(now.get() - self.as_of.get()))
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self::remembering(REMEMBERED_MAX)
    }
}

impl Directory {
    /// A directory that remembers this many entities, and as many scopes of limits.
    pub(super) fn remembering(most: usize) -> Self {
        Self {
            entities: Cache::new(most),
            limits: Cache::new(most),
            changes: AtomicU64::new(0),
            refreshes: Semaphore::new(1),
        }
    }

    /// The valid answer for an entity; `None`: it must be read.
    pub(super) fn entity(
        &self,
        entity: &EntityId,
        now: EpochMillis,
    ) -> Option<Option<Arc<EntityRecord>>> {
        let dated = self.entities.get(entity)?;
        dated.is_valid(now).then_some(dated.record)
    }

    /// The levels of a bucket, as far as the answers are valid.
    pub(super) fn levels(&self, bucket: &BucketId, now: EpochMillis) -> Levels {
        let valid = |scope| self.limits.get(scope).filter(|dated| dated.is_valid(now));
        let levels = self.unread(bucket);
        Levels { answers: levels.scopes.each_ref().map(valid), ..levels }
    }

    /// The levels of a bucket, all of which must be read.
    pub(super) fn unread(&self, bucket: &BucketId) -> Levels {
        let (scopes, changes) = (LimitsScope::levels(bucket), self.changes());
        Levels { scopes, answers: [const { None }; 4], changes }
    }

    /// How often this process changed a record or stored limits, or noticed that another process
    /// had changed stored limits. If it is the same as before a lookup, the result still holds.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes in an answer: the item, or `None` if there is none. As long as the remembered record
    /// of an entity is valid, it stays as it is. As long as remembered limits are valid, an
    /// eventually consistent answer with an earlier version does not replace them.
    pub(super) fn learn(
        &self,
        key: &ItemKey,
        item: Option<&Item>,
        consistency: Consistency,
        now: EpochMillis,
    ) -> Result<Option<Learned>, SetupError> {
        let broken = |source| SetupError::BrokenItem {
            bucket: format!("{} / {}", key.pk(), key.sk()),
            source: Box::new(source),
        };
        Ok(match key {
            ItemKey::Entity(entity) => {
                let record =
                    item.map(EntityRecord::from_item).transpose().map_err(broken)?.flatten();
                let answered = Dated { record: record.map(Arc::new), as_of: now };
                // A valid record is kept: this process stored it, or another read was answered
                // meanwhile.
                let known = self.entities.get(entity).filter(|known| known.is_valid(now));
                let dated = known.unwrap_or(answered);
                self.entities.insert(entity.clone(), dated.clone());
                Some(Learned::Entity(dated.record))
            }
            ItemKey::Limits(scope) => {
                let record =
                    item.map(StoredLimits::from_item).transpose().map_err(broken)?.flatten();
                let dated = Dated { record: record.map(Arc::new), as_of: now };
                let before = self.limits.get(scope);
                let is_newer = |before: &Dated<_>| {
                    consistency == Consistency::Eventual
                        && before.is_valid(now)
                        && before.version() > dated.version()
                };
                if let Some(newer) = before.clone().filter(is_newer) {
                    return Ok(Some(Learned::Limits(scope.clone(), newer)));
                }
                self.limits.insert(scope.clone(), dated.clone());
                // A level that is not remembered counts as unchanged. If the cache has evicted it,
                // it was seldom used. So few configurations were built from it, and each of them is
                // valid for a minute at most.
                if before.is_some_and(|before| before.version() != dated.version()) {
                    self.note_change();
                }
                Some(Learned::Limits(scope.clone(), dated))
            }
            _ => None,
        })
    }

    /// Takes in the record of an entity that this process has just stored or deleted; `None`: the
    /// record is unknown. A read that began before that and is answered later does not replace it:
    /// see [`learn`](Self::learn).
    #[cfg(feature = "dynamodb")]
    pub(crate) fn note_entity(
        &self,
        entity: &EntityId,
        record: Option<Option<&EntityRecord>>,
        now: EpochMillis,
    ) {
        match record {
            None => _ = self.entities.remove(entity),
            Some(record) => {
                let dated = Dated { record: record.cloned().map(Arc::new), as_of: now };
                self.entities.insert(entity.clone(), dated);
            }
        }
        self.note_change();
    }

    /// Takes in limits that this process has just stored; `None`: the stored limits are unknown. An
    /// eventually consistent read that began before that and is answered later does not replace
    /// them: see [`learn`](Self::learn).
    #[cfg(feature = "dynamodb")]
    pub(crate) fn note_limits(
        &self,
        scope: &LimitsScope,
        stored: Option<&StoredLimits>,
        now: EpochMillis,
    ) {
        let known = self.limits.get(scope).and_then(|known| known.version());
        match stored {
            None => _ = self.limits.remove(scope),
            // The answers to two changes came in another order than they were made.
            Some(stored) if known > Some(stored.version) => {}
            Some(stored) => {
                let dated = Dated { record: Some(Arc::new(stored.clone())), as_of: now };
                self.limits.insert(scope.clone(), dated);
            }
        }
        self.note_change();
    }
}

impl Dated<StoredLimits> {
    fn version(&self) -> Option<u64> {
        self.record.as_ref().map(|record| record.version)
    }
}

impl Levels {
    /// The levels that must be read.
    pub(super) fn missing(&self) -> impl Iterator<Item = ItemKey> {
        let levels = self.scopes.iter().zip(&self.answers).filter(|(_, answer)| answer.is_none());
        levels.map(|(scope, _)| ItemKey::Limits(scope.clone()))
    }

    /// Remembers the answer for a level.
    pub(super) fn learn(&mut self, scope: &LimitsScope, answer: Dated<StoredLimits>) {
        let mut levels = self.scopes.iter().zip(&mut self.answers);
        if let Some((_, level)) = levels.find(|(known, _)| *known == scope) {
            *level = Some(answer);
        }
    }

    /// The time in which the answers for all levels are valid.
    pub(super) fn valid_during(&self) -> Range<EpochMillis> {
        let as_of =
            self.answers.iter().map(|answer| answer.as_ref().map_or(EpochMillis::MIN, |d| d.as_of));
        let newest = as_of.clone().max().unwrap_or(EpochMillis::MIN);
        let oldest = as_of.min().unwrap_or(EpochMillis::MIN);
        newest..EpochMillis::new(oldest.get() + VALID_MS).unwrap_or(EpochMillis::MAX)
    }

    /// Merges the levels: each limit comes from the narrowest level that names it.
    pub(super) fn rules(&self) -> StoredRules {
        StoredRules::of_levels(
            self.answers.iter().flatten().filter_map(|dated| dated.record.as_deref()),
        )
    }
}

#[cfg(all(test, feature = "dynamodb"))]
mod tests {
    use super::*;

    /// Two changes of this process, whose answers come in the other order.
    #[test]
    fn an_older_change_does_not_replace_a_newer_one() {
        let directory = Directory::default();
        let now = EpochMillis::new(1_769_608_800_000).unwrap();
        let stored = |version| StoredLimits {
            scope: LimitsScope::System,
            rules: Default::default(),
            deleted: Default::default(),
            updated_at: now,
            version,
        };
        for version in [6, 5] {
            directory.note_limits(&LimitsScope::System, Some(&stored(version)), now);
        }
        let bucket = BucketId { entity: "u".parse().unwrap(), resource: "r".parse().unwrap() };
        let known = directory.levels(&bucket, now).answers[3].clone();
        assert_eq!(known.and_then(|known| known.version()), Some(6));
    }
}
