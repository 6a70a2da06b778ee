//! A run of acquires is counted completely. In a soak, which makes `SLUICEGATE_TEST_ACQUIRES` of
//! them, the last writes also cost about the processor time of the first. Other programs on the
//! machine change that time by up to a half, a cost that grows with the records by far more.

use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::{CompositeStore, Limit, Limiter, OnUnavailable};
use sluicegate_local::client;
use tokio::task::JoinSet;

use crate::killed::{found, number};
use crate::process::Local;
use crate::producers::{LIMIT, TABLE};

/// Acquires whose cost is measured together.
const STRETCH: u64 = 10_000;
/// Stretches at the beginning and at the end; the median of each counts.
const STRETCHES: usize = 3;
const TASKS: u64 = 8;
const ENTITIES: u64 = 50;

async fn acquire(limiter: Limiter, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let limits = [Limit::per_day(LIMIT, 1_000_000_000)];
        let entity = format!("user-{}", n % ENTITIES);
        let request = limiter.acquire(&entity, "model").consume(LIMIT, 1).limits(limits);
        request.no_cascade().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_counted_whole_and_a_long_one_does_not_get_slower() {
    let acquires = number("SLUICEGATE_TEST_ACQUIRES").unwrap_or(500);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("local.db");
    let data = file.to_str().unwrap();
    let local = Local::start(&["--port", "0", "--data", data]).await.ok().unwrap();
    let table = DynamoTable::new(&client::dynamodb(local.value("AWS_ENDPOINT_URL")), TABLE);
    let limiter = Limiter::builder(CompositeStore::with_table(table))
        .deadline(Duration::from_secs(60))
        .on_unavailable(OnUnavailable::Deny)
        .build();

    let mut costs = Vec::new();
    for start in (0..acquires).step_by(STRETCH.try_into().unwrap()) {
        let of_stretch = STRETCH.min(acquires - start);
        let before = local.processor_ticks();
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (first, next) = (of_stretch * task / TASKS, of_stretch * (task + 1) / TASKS);
            tasks.spawn(acquire(limiter.clone(), start + first..start + next));
        }
        tasks.join_all().await;
        let cost = local.processor_ticks() - before;
        println!("{:>7} acquires: {cost} ticks", start + of_stretch);
        costs.push(cost);
    }
    let ended = local.stop().await;
    assert!(ended.status.success(), "{}", ended.stderr);

    let size = std::fs::metadata(&file).unwrap().len();
    println!("{size} bytes");
    let found = found(file).await;
    assert_eq!(found.counters.values().sum::<i128>(), i128::from(acquires));
    assert_eq!(found.hours, found.counters);
    if acquires >= 10 * STRETCH {
        let last = middle(&costs[costs.len() - STRETCHES..]);
        let first = middle(&costs[..STRETCHES]);
        assert!(last <= first * 2, "{first} ticks at first, {last} at last");
    }
}

fn middle(costs: &[u64]) -> u64 {
    let mut costs = costs.to_vec();
    costs.sort_unstable();
    costs[costs.len() / 2]
}
