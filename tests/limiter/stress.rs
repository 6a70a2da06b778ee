//! Many tasks and several processes on one bucket; the stream's record of their writes is replayed
//! in the engine's order against an exact bucket.
//!
//! `SLUICEGATE_TEST_OPERATIONS` sets how often each task acquires, for a soak.

use std::process::Stdio;

use serde_json::Value;
use sluicegate::dynamo::DynamoTable;
use sluicegate::types::ClaimInterval;
use sluicegate::{AcquireError, CompositeStore, Limit, Limiter};
use sluicegate_core::CompositeBucket;
use sluicegate_local::poller::Source;
use sluicegate_testkit::{EngineKind, RunningEngine, engines_under_test};

use crate::support::{Shared, at, bucket, name, patient};

/// Less than the engines can write, so that requests are refused.
const RATE_PER_S: u64 = 40;

/// The acquirers' reports.
#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    granted: i64,
    returned: i64,
    refused: i64,
    contended: i64,
    errors: i64,
}

impl Totals {
    fn parse(line: &str) -> Self {
        let numbers: Vec<i64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let [granted, returned, refused, contended, errors] = numbers[..] else {
            panic!("{line:?}")
        };
        Self { granted, returned, refused, contended, errors }
    }

    fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.returned += other.returned;
        self.refused += other.refused;
        self.contended += other.contended;
        self.errors += other.errors;
    }
}

fn operations(engine: &RunningEngine, embedded: u64, other: u64) -> u64 {
    let asked = std::env::var("SLUICEGATE_TEST_OPERATIONS").ok();
    let default = if *engine.kind() == EngineKind::Embedded { embedded } else { other };
    asked.map_or(default, |asked| asked.parse().expect("a number of operations"))
}

/// New images of the bucket, in the order of the engine.
pub(crate) async fn images(engine: &RunningEngine, table: &str) -> Vec<CompositeBucket> {
    let stream = engine.stream(table).await;
    let mut images = Vec::new();
    for shard in stream.shards().await.unwrap() {
        let mut after = None;
        loop {
            let page = stream.read(&shard.id, after.as_ref(), 1_000).await.unwrap();
            let Some(last) = page.records.last() else { break };
            after = Some(last.position.clone());
            for record in &page.records {
                let record: Value = serde_json::from_str(record.json.get()).unwrap();
                let image = serde_json::from_value(record["dynamodb"]["NewImage"].clone()).unwrap();
                images.extend(CompositeBucket::from_item(&image).unwrap());
            }
        }
    }
    images
}

/// Checks what holds for any order of writes and any writer.
async fn replay(engine: &RunningEngine, table: &DynamoTable, totals: Totals) {
    assert_eq!((totals.contended, totals.errors), (0, 0), "{totals:?}");
    let limit = name("rps");
    let images = images(engine, table.name()).await;
    let stored = table.stored(&bucket("shared", "r")).await.unwrap();
    assert_eq!(images.last(), Some(&stored), "the stream is complete");
    let net = 1_000 * (totals.granted - totals.returned);
    assert_eq!(stored.limits[&limit].consumed.get(), i128::from(net), "{totals:?}");

    // Every write was decided at its image's refill time or up to an interval later.
    let interval = i64::from(ClaimInterval::default().0);
    let mut before = 0;
    let mut lowest = i128::MAX;
    for (n, image) in images.iter().enumerate() {
        let limit = image.limits[&limit];
        assert!(limit.tokens.get() >= 0, "record {n}: {limit:?}");
        let refill = limit.rule.refill();
        lowest = lowest.min(before - refill.accrued(image.refilled_at));
        before = limit.consumed.get();
        let until = at(image.refilled_at.get() + interval);
        let most = lowest + i128::from(limit.rule.burst().get()) + refill.accrued(until);
        assert!(before <= most, "record {n}: {before} of at most {most}");
    }
    println!("{:?}: {totals:?}, {} records replayed", engine.kind(), images.len());
}

async fn acquire_often(limiter: Limiter, operations: u64) -> Totals {
    let mut totals = Totals::default();
    for n in 1..=operations {
        let limits = [Limit::per_second("rps", RATE_PER_S)];
        match limiter.acquire("shared", "r").consume("rps", 1).limits(limits).no_cascade().await {
            Ok(permit) => {
                totals.granted += 1;
                if n % 8 == 0 {
                    permit.release().await.unwrap();
                    totals.returned += 1;
                }
            }
            Err(AcquireError::LimitExceeded(exceeded)) => {
                totals.refused += 1;
                tokio::time::sleep(exceeded.retry_after.unwrap_or_default()).await;
            }
            Err(AcquireError::Contended { .. }) => totals.contended += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    totals
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_process_share_a_bucket_exactly() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = DynamoTable::new(engine.client(), engine.create_table().await);
        let limiter = patient(Limiter::builder(CompositeStore::with_table(table.clone())));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..64 {
            tasks.spawn(acquire_often(limiter.clone(), operations(&engine, 16, 6)));
        }
        let mut totals = Totals::default();
        while let Some(of_task) = tasks.join_next().await {
            totals.add(of_task.unwrap());
        }
        replay(&engine, &table, totals).await;
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_a_bucket_exactly() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = DynamoTable::new(engine.client(), engine.create_table().await);
        let start = |_| {
            let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_acquirer"));
            command.args([engine.endpoint_url(), table.name(), "16"]);
            command.arg(operations(&engine, 16, 6).to_string()).kill_on_drop(true);
            command.stdout(Stdio::piped()).spawn().unwrap()
        };
        let processes: Vec<_> = (0..4).map(start).collect();
        let mut totals = Totals::default();
        for process in processes {
            let output = process.wait_with_output().await.unwrap();
            assert!(output.status.success(), "{output:?}");
            totals.add(Totals::parse(&String::from_utf8(output.stdout).unwrap()));
        }
        replay(&engine, &table, totals).await;
        engine.stop().await;
    }
}
