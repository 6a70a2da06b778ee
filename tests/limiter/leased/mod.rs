//! Leased tokens: over every store what a caller sees; in simulated time what is written and admitted,
//! and what a crash costs; and several processes.

mod behind;
mod counted;
mod held;
mod lost;
mod processes;
mod room;
mod served;
mod stores;
mod strict;
mod writes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate::{
    Breaker, BucketId, Clock, CompositeStore, Consistency, LeaseMode, LeaseSettings, LeasedLimiter,
    OnUnavailable, ReadItems, Table, TogetherError, Trouble, WriteError, Written,
};
use sluicegate_core::WritePlan;
use sluicegate_core::keys::ItemKey;
use tokio::time::Instant;

use crate::simulated::{Far, Simulated};
use crate::support::{Memory, Shared as _, bucket, name};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Counts the writes that reach the table, refused ones included.
#[derive(Debug, Clone)]
pub(crate) struct Counted(Far, Arc<AtomicU64>);

impl Counted {
    pub(crate) fn new(away_ms: u64) -> Self {
        Self(Far(Memory::default(), away_ms), Arc::default())
    }

    pub(crate) fn writes(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.0.0
    }
}

impl Table for Counted {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.write(bucket, plan).await
    }

    async fn write_together(
        &self,
        writes: &[(BucketId, WritePlan)],
        token: &str,
    ) -> Result<f64, TogetherError> {
        self.1.fetch_add(2, Ordering::Relaxed);
        self.0.write_together(writes, token).await
    }

    async fn read(&self, keys: &[ItemKey], consistency: Consistency) -> Result<ReadItems, Trouble> {
        self.0.read(keys, consistency).await
    }
}

pub(crate) type Tested = LeasedLimiter<CompositeStore<Counted>, Simulated>;

pub(crate) fn limiter(table: &Counted, mode: LeaseMode) -> Tested {
    let clock = Simulated { start: Instant::now(), off_ms: 0 };
    let settings = LeaseSettings { mode, ..LeaseSettings::default() };
    leased(table.clone(), clock, settings)
}

/// A limiter that waits a second for its table, and does nothing without it.
pub(crate) fn leased<T: Table, C: Clock + Clone>(
    table: T,
    clock: C,
    settings: LeaseSettings,
) -> LeasedLimiter<CompositeStore<T>, C> {
    LeasedLimiter::leased_with(CompositeStore::on(table), clock, settings)
        .deadline(SECOND)
        .on_unavailable(OnUnavailable::Deny)
        .breaker(Breaker::never())
}

pub(crate) fn strict(table: &Counted) -> Tested {
    limiter(table, LeaseMode::default())
}

pub(crate) async fn consumed(table: &Counted, entity: &str) -> i64 {
    let stored = table.memory().stored(&bucket(entity, "r")).await;
    stored.map_or(0, |stored| stored.limits[&name("rps")].consumed.get() / 1_000)
}

/// A table of a process that may be killed: from then on nothing of it reaches the table.
#[derive(Debug, Clone)]
pub(crate) struct Mortal(Counted, Arc<tokio::sync::Semaphore>);

impl Mortal {
    pub(crate) fn new(table: &Counted) -> Self {
        Self(table.clone(), Arc::new(tokio::sync::Semaphore::new(1)))
    }

    async fn alive(&self) {
        if self.1.acquire().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.1.is_closed()
    }

    pub(crate) fn kill(&self) {
        self.1.close();
    }
}

impl Table for Mortal {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        self.alive().await;
        let written = self.0.write(bucket, plan).await;
        self.alive().await;
        written
    }

    async fn write_together(
        &self,
        writes: &[(BucketId, WritePlan)],
        token: &str,
    ) -> Result<f64, TogetherError> {
        self.alive().await;
        self.0.write_together(writes, token).await
    }

    async fn read(&self, keys: &[ItemKey], consistency: Consistency) -> Result<ReadItems, Trouble> {
        self.alive().await;
        self.0.read(keys, consistency).await
    }
}
