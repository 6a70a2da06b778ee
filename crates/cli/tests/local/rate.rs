//! A run of acquires is counted whole. In a soak, which has `SLUICEGATE_TEST_ACQUIRES` of them, the
//! last writes are also as fast as the first.

use std::time::{Duration, Instant};

use sluicegate::{CompositeStore, DynamoTable, Limit, Limiter, OnUnavailable};
use sluicegate_local::client;
use tokio::task::JoinSet;

use crate::killed::{found, number};
use crate::process::Local;
use crate::producers::{LIMIT, TABLE};

/// Acquires that are timed together.
const STRETCH: u64 = 10_000;
const TASKS: u64 = 8;
const ENTITIES: u64 = 50;

async fn acquire(limiter: Limiter<CompositeStore<DynamoTable>>, numbers: std::ops::Range<u64>) {
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
    let limiter = Limiter::new(CompositeStore::on(table))
        .deadline(Duration::from_secs(60))
        .on_unavailable(OnUnavailable::Deny);

    let mut rates = Vec::new();
    for start in (0..acquires).step_by(STRETCH.try_into().unwrap()) {
        let of_stretch = STRETCH.min(acquires - start);
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (first, next) = (of_stretch * task / TASKS, of_stretch * (task + 1) / TASKS);
            tasks.spawn(acquire(limiter.clone(), start + first..start + next));
        }
        tasks.join_all().await;
        let rate = of_stretch as f64 / started.elapsed().as_secs_f64();
        println!("{:>7} acquires: {rate:6.0}/s", start + of_stretch);
        rates.push(rate);
    }
    let ended = local.stop().await;
    assert!(ended.status.success(), "{}", ended.stderr);

    let size = std::fs::metadata(&file).unwrap().len();
    println!("{size} bytes");
    let found = found(file).await;
    assert_eq!(found.counters.values().sum::<i128>(), i128::from(acquires));
    assert_eq!(found.hours, found.counters);
    // A ratio within one long run says something on any machine; the time of a short one does not.
    if let [first, .., last] = rates[..]
        && acquires >= 10 * STRETCH
    {
        assert!(last >= 0.8 * first, "{first:.0}/s at first, {last:.0}/s at last");
    }
}
