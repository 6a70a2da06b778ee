//! Writes counted at the engine, by the table's stream, for each acquire; in real time over HTTP.
//!
//! `SLUICEGATE_TEST_WRITES_SECONDS` sets the time, `SLUICEGATE_TEST_WRITES_KEYS` the number of
//! buckets; more than 100 need an engine that is optimised.

use std::time::{Duration, Instant};

use sluicegate::dynamo::DynamoTable;
use sluicegate::{CompositeStore, DynamoStore, LeaseSettings, Limiter};
use sluicegate_local::{EmbeddedEngine, Storage};
use sluicegate_testkit::{EngineKind, RunningEngine};

use super::writes::{load, prepared, zipf};
use crate::stress::images;
use crate::support::{name, patient};

/// Settling is included, however long it takes.
const DEADLINE: Duration = Duration::from_secs(60);

fn seconds() -> u64 {
    asked("SLUICEGATE_TEST_WRITES_SECONDS").unwrap_or(2)
}

fn asked(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

/// The writes of a table of its own, when 50,000 tokens a second are asked for, and the seconds that
/// it took: more than were asked for if the machine is too slow.
async fn writes_and_seconds(what: &str, who: impl Fn() -> usize, gives_back: bool) -> (f64, f64) {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = TURN.lock().await;
    // In memory each write would take longer than the one before.
    let embedded = EmbeddedEngine::start(Storage::Temporary).await.unwrap();
    let engine = RunningEngine::start(EngineKind::Endpoint(embedded.endpoint_url())).await;
    let table = DynamoTable::new(engine.client(), engine.create_table().await);
    let settings = LeaseSettings { deadline: DEADLINE, ..LeaseSettings::default() };
    let store = CompositeStore::with_table(table);
    let limiter = patient(Limiter::builder(store).leasing(settings));
    let call = prepared(&limiter).await;
    let start = Instant::now();
    let admitted = load(&call, Duration::from_secs(seconds()), who, gives_back).await;
    let took = start.elapsed();
    let report = limiter.shutdown(DEADLINE).await;
    assert!(report.unsettled.is_empty(), "{report:?}");

    let table = limiter.store::<DynamoStore>().unwrap().table();
    let images = images(&engine, table.name()).await;
    let mut consumed = std::collections::BTreeMap::new();
    for image in &images {
        consumed.insert(&image.entity, image.limits[&name("rps")].consumed.get() / 1_000);
    }
    let kept = if gives_back { admitted / 2 } else { admitted };
    let ambiguous = limiter.counters().ambiguous.get();
    let consumed = consumed.values().sum::<i128>();
    assert_eq!(consumed, i128::from(kept), "{what}: {ambiguous} ambiguous writes, {report:?}");
    assert_eq!(admitted, 50_000 * seconds());
    // A refused write costs as much, and leaves no record.
    let writes = limiter.leased().unwrap().writes().max(u64::try_from(images.len()).unwrap());
    let fewer = 100.0 * (1.0 - writes as f64 / admitted as f64);
    println!(
        "{what}: {admitted} acquires in {took:.1?}, {} records, {writes} writes: {fewer:.3} % fewer",
        images.len()
    );
    (writes as f64, took.as_secs_f64())
}

/// At the pace, 1,000 acquires a write.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_bucket_costs_the_engine_a_handful_of_writes() {
    let (writes, seconds) = writes_and_seconds("one bucket", || 0, false).await;
    assert!(writes <= 50.0 * seconds, "{writes} writes in {seconds} s");
}

/// At the pace, 10,000 acquires a write.
#[tokio::test(flavor = "multi_thread")]
async fn returned_tokens_cost_the_engine_no_write() {
    let (writes, seconds) = writes_and_seconds("one bucket, half given back", || 0, true).await;
    assert!(writes <= 5.0 * seconds, "{writes} writes in {seconds} s");
}

/// Tokens that are needed before the next second comes cost another write now and then.
#[tokio::test(flavor = "multi_thread")]
async fn many_keys_cost_the_engine_a_write_a_second_each_at_most() {
    let keys = asked("SLUICEGATE_TEST_WRITES_KEYS").unwrap_or(100);
    let keys = u32::try_from(keys).unwrap();
    let (writes, seconds) = writes_and_seconds(&format!("{keys} keys"), zipf(keys), false).await;
    let most = 2.0 * f64::from(keys) * (seconds + 1.0);
    assert!(writes <= most, "{writes} writes in {seconds} s");
}
