//! Exactly once, whatever is delivered twice, split, overlapped, re-batched or replayed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_lambda_events::event::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use serde_json::value::RawValue;
use sluicegate_core::StreamRecord;
use sluicegate_local::InProcess;
use sluicegate_local::poller::{
    Backoff, BatchSize, Duplicates, Handler, Poller, RecordedSource, Settings,
};
use sluicegate_testkit::history::{History, Shape};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{EngineKind, RunningEngine};

use crate::support::{
    Records, acquire, acquire_of, assert_exact, deliver, hour_of, on_every_engine, processor,
    records_for,
};

/// Seeds of `cargo test`; a failure names its seed.
const SEEDS: [u64; 3] = [1, 2, 3];

#[tokio::test(flavor = "multi_thread")]
async fn any_delivery_of_a_history_gives_the_same_windows() {
    on_every_engine(async |engine| {
        let embedded = *engine.kind() == EngineKind::Embedded;
        for seed in if embedded { &SEEDS[..] } else { &SEEDS[..1] } {
            let history = History::generate(&Shape::new(*seed, records_for(engine, 5_000, 500)));
            for times in [1, 2, 5] {
                whole(engine, &history, times, *seed).await;
            }
            misbehaving(engine, &history, *seed).await;
        }
    })
    .await;
}

/// The whole history `times` over, in batches of random size.
async fn whole(engine: &RunningEngine, history: &History, times: usize, seed: u64) {
    let table = engine.create_table().await;
    let processor = processor(engine, &table);
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..times {
        let mut rest = &history.records[..];
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(rng.usize(1..=1_000).min(rest.len()));
            deliver(&processor, batch).await;
            rest = after;
        }
    }
    let found = read_usages(engine.client(), &table).await;
    assert_exact(&found, history, &format!("seed {seed}, delivered {times} times"));
}

/// Batches redelivered, overlapped and split by the poller, and replayed from random identifiers
/// that the function reports although it had counted everything.
async fn misbehaving(engine: &RunningEngine, history: &History, seed: u64) {
    let table = engine.create_table().await;
    let function = Fickle {
        inner: InProcess::new(processor(engine, &table), Duration::from_secs(60)),
        rng: Mutex::new(fastrand::Rng::with_seed(seed)),
        reports: AtomicU64::new(0),
    };
    let settings = Settings {
        batch_size: BatchSize::new(history.records.len() / 30).unwrap(),
        duplicates: Some(Duplicates::seeded(seed)),
        backoff: Backoff { first: Duration::ZERO, longest: Duration::ZERO },
        ..Settings::default()
    };
    let source = RecordedSource::new(history.records.clone());
    let mut poller = Poller::new(source, &function, settings);
    let report = poller.drain().await.unwrap();
    let reports = function.reports.load(Ordering::SeqCst);
    assert!(reports > 0 && report.delivered > report.records, "{report:?}");
    let found = read_usages(engine.client(), &table).await;
    assert_exact(&found, history, &format!("seed {seed}, misbehaving delivery"));
}

/// Counts every batch and then, half the time, claims to have failed from some record on.
struct Fickle {
    inner: InProcess,
    rng: Mutex<fastrand::Rng>,
    reports: AtomicU64,
}

impl Handler for Fickle {
    type Error = sluicegate_processor::HandleError;

    async fn handle(
        &self,
        records: &[Box<RawValue>],
    ) -> Result<DynamoDbEventResponse, Self::Error> {
        let mut response = self.inner.handle(records).await?;
        let claimed = {
            let mut rng = self.rng.lock().unwrap();
            rng.bool().then(|| rng.usize(..records.len()))
        };
        if let Some(index) = claimed {
            let (_, sequence) = StreamRecord::position_of(records[index].get()).unwrap();
            let mut failure = DynamoDbBatchItemFailure::default();
            failure.item_identifier = Some(sequence.to_string());
            response.batch_item_failures = vec![failure];
            self.reports.fetch_add(1, Ordering::SeqCst);
        }
        Ok(response)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processors_on_one_stream_count_once() {
    on_every_engine(async |engine| {
        let history = History::generate(&Shape::new(7, records_for(engine, 2_000, 300)));
        let table = engine.create_table().await;
        let run = async |seed| {
            let function = InProcess::new(processor(engine, &table), Duration::from_secs(60));
            let settings = Settings {
                batch_size: BatchSize::new(100).unwrap(),
                duplicates: Some(Duplicates::seeded(seed)),
                ..Settings::default()
            };
            let source = RecordedSource::new(history.records.clone());
            Poller::new(source, function, settings).drain().await.unwrap();
        };
        // Both from the trim horizon, as in a blue/green switch.
        tokio::join!(run(1), run(2));
        assert_exact(&read_usages(engine.client(), &table).await, &history, "two processors");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_stream_and_the_leftovers_of_the_old_count_side_by_side() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let (old, new) = ("2026-01-01T00:00:00.000", "2026-01-28T00:00:00.000");
        // The new stream numbers its records below those of the old one.
        let of_old: Records = (0..20)
            .map(|n| acquire_of(old, "u", 1_000 + n, 1_000 * n.cast_signed(), 1_000))
            .collect();
        let of_new: Records =
            (0..10).map(|n| acquire_of(new, "u", n, 50_000 + 10 * n.cast_signed(), 10)).collect();
        deliver(&processor, &of_old[..12]).await;
        deliver(&processor, &of_new[..5]).await;
        deliver(&processor, &of_old[8..]).await;
        deliver(&processor, &of_new).await;
        deliver(&processor, &of_old).await;
        let found = read_usages(engine.client(), &table).await;
        let hour = hour_of(&found, "u").unwrap();
        assert_eq!((hour.events, hour.consumed_milli["rpm"]), (30, 20_100));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_between_batches_is_counted_when_it_comes() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let records: Records = (0..10).map(|n| acquire("u", n, 0, 1)).collect();
        let first = deliver(&processor, &records[..3]).await;
        assert_eq!((first.report.windows_written, first.report.duplicates_dropped), (2, 0));
        // Overlaps by two, and carries one record twice.
        let mut overlapping = records[1..6].to_vec();
        overlapping.push(records[5].clone());
        let second = deliver(&processor, &overlapping).await;
        assert_eq!((second.report.windows_written, second.report.duplicates_dropped), (2, 3));
        let third = deliver(&processor, &records[..6]).await;
        assert_eq!((third.report.windows_written, third.report.duplicates_dropped), (0, 6));
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "u").unwrap().events, 6);
    })
    .await;
}
