//! Measures a decision while the store is unavailable and the breaker open: the whole call, from
//! naming the amounts to the permit.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::future::IntoFuture;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sluicegate::settings::BreakerConfig;
use sluicegate::store::{
    Consistency, ReadItems, Table, TableError, TransactError, WriteError, Written,
};
use sluicegate::types::{BucketId, EpochMillis};
use sluicegate::{CompositeStore, Limit, Limiter, OnUnavailable, TestClock};
use sluicegate_core::WritePlan;
use sluicegate_core::keys::ItemKey;

const DECISIONS: u64 = 1_000;

/// A table that never answers.
struct Away;

fn away() -> TableError {
    TableError::Unconfirmed("connection refused".into())
}

impl Table for Away {
    async fn write(&self, _: &BucketId, _: &WritePlan) -> Result<Written, WriteError> {
        Err(WriteError::Table(away()))
    }

    async fn transact_write(
        &self,
        _: &[(BucketId, WritePlan)],
        _mark: Option<&sluicegate::store::Mark>,
        _: &str,
    ) -> Result<f64, TransactError> {
        Err(TransactError::Table(away()))
    }

    async fn read(&self, _: &[ItemKey], _: Consistency) -> Result<ReadItems, TableError> {
        Err(away())
    }
}

fn degraded(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut group = c.benchmark_group("breaker open");
    group.throughput(Throughput::Elements(DECISIONS));
    for policy in [OnUnavailable::Allow, OnUnavailable::Deny, OnUnavailable::Local] {
        let clock = TestClock::at(EpochMillis::new(1_769_608_800_000).unwrap());
        let limiter = Limiter::builder(CompositeStore::with_table(Away))
            .clock(clock)
            .on_unavailable(policy)
            .connect_deadline(Duration::from_millis(1))
            .deadline(Duration::from_millis(1))
            .breaker(BreakerConfig { failures: 1, ..BreakerConfig::default() })
            .build();
        let limits = [Limit::quota("rpm", 1_000_000_000_000)];
        let one = || {
            let request = limiter.acquire("user-123", "gpt-4").consume("rpm", 1);
            request.limits(limits.iter().cloned()).no_cascade()
        };
        let _ = runtime.block_on(one().into_future());
        assert_eq!(limiter.counters().outages.get(), 1);
        group.bench_function(BenchmarkId::new("acquire", format!("{policy:?}")), |b| {
            b.iter(|| {
                runtime.block_on(async {
                    for _ in 0..DECISIONS {
                        let _ = black_box(one().await);
                    }
                });
            });
        });
    }
    group.finish();
}

criterion_group!(benches, degraded);
criterion_main!(benches);
