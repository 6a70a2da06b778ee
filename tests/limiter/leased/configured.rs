//! A table that stores limits and entities too, and requests at a steady pace.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluicegate::leasing::Accounting;
use sluicegate::store::{
    Consistency, ReadItems, Table, TableError, TransactError, WriteError, Written,
};
use sluicegate::types::{BucketId, EntityRecord, LimitsScope, StoredLimits};
use sluicegate::{EntityId, LeaseMode, LeaseSettings, Limiter};
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{Rule, WritePlan};
use tokio::time::{Instant, sleep};

use super::{Counted, SECOND, leased};
use crate::simulated::Simulated;
use crate::support::{T0, at, bucket, name};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// The time between two requests.
pub(crate) const PACE: Duration = Duration::from_millis(7);
pub(crate) const AWAY_MS: u64 = 8;

/// A table that also stores limits and entities.
#[derive(Debug, Clone)]
pub(crate) struct Configured {
    pub(crate) counted: Counted,
    pub(crate) limits: Arc<Mutex<HashMap<LimitsScope, StoredLimits>>>,
    pub(crate) entities: Arc<Mutex<HashMap<EntityId, EntityRecord>>>,
    /// The number of limits and entities that were read.
    pub(crate) lookups: Arc<AtomicU64>,
    pub(crate) start: Instant,
}

impl Configured {
    pub(crate) fn new() -> Self {
        let counted = Counted::new(AWAY_MS);
        let (limits, entities, lookups) = Default::default();
        Self { counted, limits, entities, lookups, start: Instant::now() }
    }

    pub(crate) fn limiter(&self, mode: LeaseMode) -> Limiter {
        let clock = Simulated { start: self.start, off_ms: 0 };
        leased(self.clone(), clock, LeaseSettings { mode, ..LeaseSettings::default() })
    }

    /// Stores limits of the system.
    pub(crate) fn set_limits(&self, limits: &[(&str, Rule)]) {
        self.set_limits_of(LimitsScope::System, limits);
    }

    pub(crate) fn set_limits_of(&self, scope: LimitsScope, limits: &[(&str, Rule)]) {
        let rules = limits.iter().map(|(limit, rule)| (name(limit), *rule)).collect();
        let passed = i64::try_from(self.start.elapsed().as_millis()).unwrap();
        let (deleted, updated_at) = (Default::default(), at(T0 + passed));
        let mut limits = self.limits.lock().unwrap();
        let version = limits.get(&scope).map_or(1, |stored| stored.version + 1);
        let stored = StoredLimits { scope: scope.clone(), rules, deleted, updated_at, version };
        limits.insert(scope, stored);
    }

    pub(crate) fn put_entity(&self, entity: &str, parent: &str) {
        let [entity, parent] = [entity, parent].map(|entity| bucket(entity, "r").entity);
        let record = EntityRecord { entity: entity.clone(), parent: Some(parent), cascade: true };
        self.entities.lock().unwrap().insert(entity, record);
    }

    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.swap(0, Ordering::Relaxed)
    }

    pub(crate) async fn consumed(&self, entity: &str) -> i64 {
        super::consumed(&self.counted, entity).await
    }
}

impl Table for Configured {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        self.counted.write(bucket, plan).await
    }

    async fn transact_write(
        &self,
        writes: &[(BucketId, WritePlan)],
        mark: Option<&sluicegate::store::Mark>,
        token: &str,
    ) -> Result<f64, TransactError> {
        self.counted.transact_write(writes, mark, token).await
    }

    async fn read(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<ReadItems, TableError> {
        let mut found = self.counted.read(keys, consistency).await?;
        for (key, item) in keys.iter().zip(&mut found.items) {
            *item = match key {
                ItemKey::Limits(scope) => {
                    self.limits.lock().unwrap().get(scope).map(StoredLimits::to_item)
                }
                ItemKey::Entity(entity) => {
                    self.entities.lock().unwrap().get(entity).map(EntityRecord::to_item)
                }
                _ => continue,
            };
            self.lookups.fetch_add(1, Ordering::Relaxed);
        }
        Ok(found)
    }
}

pub(crate) fn per_minute(tokens: i64) -> Rule {
    let amount = sluicegate::types::Millitokens::from_tokens(tokens).unwrap();
    Rule::new(amount, sluicegate::types::Refill::new(amount, 60_000).unwrap()).unwrap()
}

/// The number of requests at a steady pace that were admitted in this time.
pub(crate) async fn admitted(time: Duration, ask: impl AsyncFn() -> bool) -> i64 {
    let until = Instant::now() + time;
    let mut admitted = 0;
    while Instant::now() < until {
        admitted += i64::from(ask().await);
        sleep(PACE).await;
    }
    admitted
}

pub(crate) const MODES: [LeaseMode; 3] = [
    LeaseMode::Strict(Accounting::AtLease),
    LeaseMode::WriteBehind { threshold: 50 },
    // Never low.
    LeaseMode::WriteBehind { threshold: 1_000_000 },
];

/// Lowers limits to 60 a minute; returns the admissions in the minute after the first.
pub(crate) async fn after_lowering(
    table: &Configured,
    lower: impl FnOnce(),
    ask: impl AsyncFn() -> bool,
) -> i64 {
    assert!(admitted(5 * SECOND, &ask).await > 600);
    table.lookups();
    lower();
    admitted(MINUTE + SECOND, &ask).await;
    admitted(MINUTE, &ask).await
}

/// The burst at most, and what is earned.
pub(crate) const LOWERED: std::ops::RangeInclusive<i64> = 55..=120;
