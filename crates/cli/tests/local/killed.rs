//! A `sluicegate local` that is killed: no acknowledged write is lost, nothing is counted twice.
//!
//! `SLUICEGATE_TEST_KILLS` sets the number of kills, for a soak; `SLUICEGATE_TEST_SEED` repeats the
//! seed that a failure named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use sluicegate_core::CompositeBucket;
use sluicegate_local::{EmbeddedEngine, Storage, client};
use sluicegate_testkit::usage::{read_usages, scan};

use crate::process::Local;
use crate::producers::{Books, LIMIT, Producers, TABLE, Told};

/// The time after which a stopped process is asked again.
const SOON: Duration = Duration::from_millis(500);
/// Longer than any answer takes: every producer knows the result of its calls.
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is no number: {value}")))
}

/// Tokens by entity, as counted by the buckets and by the hour and day windows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) counters: BTreeMap<String, i128>,
    pub(crate) hours: BTreeMap<String, i128>,
    pub(crate) days: BTreeMap<String, i128>,
}

pub(crate) async fn found(file: PathBuf) -> Found {
    let engine = EmbeddedEngine::start(Storage::File(file)).await.unwrap();
    let client = client::dynamodb(&engine.endpoint_url());
    let mut found = Found::default();
    for item in scan(&client, TABLE).await {
        let item = serde_dynamo::Item::from(item);
        if let Some(bucket) = CompositeBucket::from_item(&item).unwrap() {
            let consumed = bucket.limits.values().next().unwrap().consumed.get();
            found.counters.insert(bucket.id().entity.to_string(), consumed / 1_000);
        }
    }
    for ((entity, _, kind, _), usage) in read_usages(&client, TABLE).await {
        let of_kind = if kind == "hour" { &mut found.hours } else { &mut found.days };
        *of_kind.entry(entity).or_default() += usage.consumed_milli[LIMIT] / 1_000;
    }
    engine.stop().await.unwrap();
    found
}

/// Starts it once more and lets it count the rest.
async fn settled(file: &Path, port: &str) -> Found {
    let ended = Local::restart(file, port).await.stop().await;
    assert!(ended.status.success(), "{}", ended.stderr);
    let found = found(file.to_owned()).await;
    assert_eq!(found.hours, found.counters);
    assert_eq!(found.days, found.counters);
    found
}

fn check(books: &Books, found: &Found, seed: u64) {
    for (entity, Told { least, most, .. }) in books {
        let consumed = found.counters[entity];
        assert!(
            (*least..=*most).contains(&consumed),
            "seed {seed}: {entity} consumed {consumed}, its producers know of {least} to {most}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_killed_process_are_counted_once() {
    let seed = number("SLUICEGATE_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    let kills = number("SLUICEGATE_TEST_KILLS").unwrap_or(5);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("local.db");

    let data = file.to_str().unwrap();
    let mut local = Local::start(&["--port", "0", "--data", data]).await.ok().unwrap();
    let port = local.port();
    let producers = Producers::start(local.value("AWS_ENDPOINT_URL"), seed, SOON);
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(rng.u64(50..800))).await;
        local.kill().await;
        local = Local::restart(&file, &port).await;
    }
    tokio::time::sleep(Duration::from_millis(rng.u64(50..800))).await;
    local.kill().await;
    let books = producers.stop().await;

    let found = settled(&file, &port).await;
    println!("{books:?} {:?}", found.counters);
    check(&books, &found, seed);
    assert!(books.values().map(|told| told.granted).sum::<u64>() > kills, "{books:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_idle_everything_is_known_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("local.db");
    let data = file.to_str().unwrap();
    let local = Local::start(&["--port", "0", "--data", data]).await.ok().unwrap();
    let port = local.port();
    let producers = Producers::start(local.value("AWS_ENDPOINT_URL"), 1, LONG);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let books = producers.stop().await;
    local.kill().await;

    let found = settled(&file, &port).await;
    let told: BTreeMap<String, i128> =
        books.iter().map(|(entity, told)| (entity.clone(), told.least)).collect();
    assert!(books.values().all(|told| told.least == told.most && told.granted > 0), "{books:?}");
    assert_eq!(found.counters, told);
}
