//! The log lines of an outage. Tested in a process of its own: the decision to log a line is
//! remembered for all threads, so other tests beside it would influence it.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests panic")]

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluicegate::store::{
    Consistency, MemoryTable, ReadItems, Table, TableError, TransactError, WriteError, Written,
};
use sluicegate::types::BucketId;
use sluicegate::{CompositeStore, Limit, Limiter};
use sluicegate_core::WritePlan;
use sluicegate_core::keys::ItemKey;
use tracing_subscriber::util::SubscriberInitExt;

/// A table that can be made unavailable.
#[derive(Clone, Default)]
struct Switched(Arc<(MemoryTable, AtomicBool)>);

impl Switched {
    fn set_away(&self, is_away: bool) {
        self.0.1.store(is_away, Ordering::Relaxed);
    }

    fn check(&self) -> Result<&MemoryTable, TableError> {
        match self.0.1.load(Ordering::Relaxed) {
            true => Err(TableError::Unconfirmed("the cable is cut".into())),
            false => Ok(&self.0.0),
        }
    }
}

impl Table for Switched {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        self.check().map_err(WriteError::Table)?.write(bucket, plan).await
    }

    async fn transact_write(
        &self,
        writes: &[(BucketId, WritePlan)],
        mark: Option<&sluicegate::store::Mark>,
        token: &str,
    ) -> Result<f64, TransactError> {
        self.check().map_err(TransactError::Table)?.transact_write(writes, mark, token).await
    }

    async fn read(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<ReadItems, TableError> {
        self.check()?.read(keys, consistency).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_said_when_it_is_found_and_when_it_is_over() {
    let (mut log, writer) = std::io::pipe().unwrap();
    let logging = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(Arc::new(writer))
        .set_default();
    let table = Switched::default();
    let limiter = Limiter::new(CompositeStore::with_table(table.clone()));
    let ask = || {
        let limits = [Limit::per_minute("rpm", 1_000_000)];
        limiter.acquire("secret", "r").consume("rpm", 1).limits(limits).no_cascade().into_future()
    };
    for _ in 0..2 {
        table.set_away(true);
        for _ in 0..1_000 {
            ask().await.unwrap();
        }
        // Found available and lost again, by one request each time: that is not logged.
        table.set_away(false);
        tokio::time::sleep(Duration::from_millis(300)).await;
        table.set_away(true);
        ask().await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        table.set_away(false);
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..1_000 {
            ask().await.unwrap();
        }
    }
    drop(logging);
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    for (line, parts) in lines.iter().zip(
        [
            [" WARN ", "the store is unavailable", "the cable is cut", "policy=Allow"],
            [" INFO ", "the store answers again", "", ""],
        ]
        .iter()
        .cycle(),
    ) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
    assert_eq!(limiter.counters().outages.get(), 2);
}
