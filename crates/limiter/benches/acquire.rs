//! Measures the cost of our own code per warm acquire: everything but the table, which answers at
//! once.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sluicegate::store::{
    Consistency, ReadItems, Table, TableError, TransactError, WriteError, Written,
};
use sluicegate::types::{BucketId, EpochMillis};
use sluicegate::{CompositeStore, Limit, Limiter, TestClock};
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{CompositeBucket, LimitBalance, Millitokens, RulesHash, WritePlan};

const T0: i64 = 1_769_608_800_000;
const ACQUIRES: u64 = 1_000;

/// Grants every write, and always shows the same item.
#[derive(Debug, Clone)]
struct Yes(Arc<CompositeBucket>);

impl Table for Yes {
    async fn write(&self, _: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        black_box(plan);
        Ok(Written { image: Some(self.0.clone()), write_units: 1.0 })
    }

    async fn transact_write(
        &self,
        _: &[(BucketId, WritePlan)],
        _mark: Option<&sluicegate::store::Mark>,
        _: &str,
    ) -> Result<f64, TransactError> {
        Ok(4.0)
    }

    async fn read(&self, keys: &[ItemKey], _: Consistency) -> Result<ReadItems, TableError> {
        let items =
            keys.iter().map(|key| matches!(key, ItemKey::Bucket(..)).then(|| self.0.to_item()));
        Ok(ReadItems { items: items.collect(), read_units: 1.0 })
    }
}

fn limits(count: usize) -> Vec<Limit> {
    (0..count).map(|n| Limit::per_minute(format!("limit-{n}"), 1_000_000)).collect()
}

/// The item, refilled `age_ms` ago.
fn item(count: usize, age_ms: i64) -> CompositeBucket {
    let rules: Vec<_> = limits(count).iter().map(|limit| limit.check().unwrap()).collect();
    let milli = |tokens| Millitokens::from_tokens(tokens).unwrap();
    CompositeBucket {
        entity: "user-123".parse().unwrap(),
        resource: "gpt-4".parse().unwrap(),
        refilled_at: EpochMillis::new(T0 - age_ms).unwrap(),
        rules_hash: Some(RulesHash::of(rules.iter().map(|(limit, rule)| (limit, rule)))),
        limits: rules
            .into_iter()
            .map(|(limit, rule)| {
                (
                    limit,
                    LimitBalance { rule, tokens: milli(500_000), consumed: milli(500_000).into() },
                )
            })
            .collect(),
        expires_at_s: Some(T0 / 1_000 + 180),
        config_stamp: sluicegate_core::ConfigStamp::None,
        request_ids: Vec::new(),
    }
}

fn acquire(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut group = c.benchmark_group("warm acquire, our part");
    group.throughput(Throughput::Elements(ACQUIRES));
    for count in [2, 5] {
        for (path, age_ms) in [("unclaimed", 10), ("claim", 1_000)] {
            let clock = TestClock::at(EpochMillis::new(T0).unwrap());
            let table = Yes(Arc::new(item(count, age_ms)));
            let limiter = Limiter::builder(CompositeStore::with_table(table)).clock(clock).build();
            let limits = limits(count);
            let names: Vec<String> = (0..count).map(|n| format!("limit-{n}")).collect();
            let one = || {
                let request = limiter.acquire("user-123", "gpt-4").limits(limits.iter().cloned());
                names.iter().fold(request, |request, name| request.consume(name.as_str(), 1))
            };
            let path_taken = runtime.block_on(async { one().await.unwrap() }).cost().path.unwrap();
            assert_eq!(path_taken.as_str(), path);
            group.bench_function(BenchmarkId::new(path, count), |b| {
                b.iter(|| {
                    runtime.block_on(async {
                        for _ in 0..ACQUIRES {
                            black_box(one().await.unwrap());
                        }
                    });
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, acquire);
criterion_main!(benches);
