//! Leased tokens: the caller's view over every store; in simulated time the writes, the admissions
//! and the cost of a crash; and several processes.

mod behind;
mod changed;
mod configured;
mod counted;
mod held;
mod lost;
mod parents;
mod plain;
mod processes;
pub(crate) mod room;
mod served;
mod slow;
mod stores;
mod strict;
mod writes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate::settings::BreakerConfig;
use sluicegate::store::Table;
use sluicegate::{
    Clock, CompositeStore, LeaseMode, LeaseSettings, Limit, Limiter, LimiterBuilder, OnUnavailable,
};
use tokio::time::Instant;

use crate::intercept::{Call, intercepting};
use crate::simulated::{Far, Simulated};
use crate::support::{Engine, Memory, bucket, name};

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

    async fn intercept<T>(&self, call: Call<'_>, done: impl Future<Output = T>) -> T {
        let writes = match call {
            Call::Write(..) => 1,
            Call::WriteTogether => 2,
            Call::Read => 0,
        };
        self.1.fetch_add(writes, Ordering::Relaxed);
        done.await
    }
}

intercepting!(Counted, 0);

pub(crate) fn limiter(table: &Counted, mode: LeaseMode) -> Limiter {
    builder(table, mode).build()
}

fn builder(table: &Counted, mode: LeaseMode) -> LimiterBuilder<CompositeStore<Counted>> {
    let clock = Simulated { start: Instant::now(), off_ms: 0 };
    let settings = LeaseSettings { mode, ..LeaseSettings::default() };
    builder_of(table.clone(), clock, settings)
}

/// A limiter that waits a second for its table, and does nothing without it.
pub(crate) fn leased<T: Table, C: Clock>(table: T, clock: C, settings: LeaseSettings) -> Limiter {
    builder_of(table, clock, settings).build()
}

fn builder_of<T: Table>(
    table: T,
    clock: impl Clock,
    settings: LeaseSettings,
) -> LimiterBuilder<CompositeStore<T>> {
    Limiter::builder(CompositeStore::with_table(table))
        .clock(clock)
        .leasing(settings)
        .deadline(SECOND)
        .on_unavailable(OnUnavailable::Deny)
        .breaker(BreakerConfig::never())
}

pub(crate) fn strict(table: &Counted) -> Limiter {
    limiter(table, LeaseMode::default())
}

/// A limit that no test here reaches: 60,000 a minute.
pub(crate) fn ample() -> [Limit; 1] {
    [Limit::per_minute("rps", 60_000)]
}

/// Tokens that were consumed of an entity's bucket, as stored.
pub(crate) async fn consumed(table: &Counted, entity: &str) -> i64 {
    consumed_on(table.memory(), entity).await
}

pub(crate) async fn consumed_on(engine: &impl Engine, entity: &str) -> i64 {
    let stored = engine.image(&bucket(entity, "r")).await;
    let consumed = stored.map_or(0, |stored| stored.limits[&name("rps")].consumed.get() / 1_000);
    i64::try_from(consumed).unwrap()
}

/// A table of a process that may be killed: from then on none of its calls reaches the table.
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

    async fn intercept<T>(&self, _: Call<'_>, call: impl Future<Output = T>) -> T {
        self.alive().await;
        let result = call.await;
        self.alive().await;
        result
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.1.is_closed()
    }

    pub(crate) fn kill(&self) {
        self.1.close();
    }
}

intercepting!(Mortal, 0);
