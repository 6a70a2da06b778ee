//! Exactly-once counting of records that are delivered twice, split, overlapped, re-batched or
//! replayed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_lambda_events::event::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use serde_json::value::RawValue;
use sluicegate_core::StreamRecord;
use sluicegate_local::InProcess;
use sluicegate_local::poller::{Backoff, BatchSize, Handler, Poller, Settings};
use sluicegate_processor::Processor;
use sluicegate_testkit::history::{History, Shape};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{
    AtLeastOnce, EngineKind, Fault, Proxy, RecordedSource, RunningEngine, engines_under_test,
};

use crate::support::{
    Records, acquire, acquire_of, acquires_of_limits, assert_exact, contains, deliver, hour_of,
    on_every_engine, processor, records_for,
};

/// `SLUICEGATE_TEST_SEEDS=FROM..TO`, by default one; a failure names its seed.
fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SLUICEGATE_TEST_SEEDS") else { return 1..2 };
    let (from, to) = text.split_once("..").expect("SLUICEGATE_TEST_SEEDS=FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_delivery_of_a_history_gives_the_same_windows() {
    for kind in engines_under_test() {
        let embedded = kind == EngineKind::Embedded;
        for seed in if embedded { seeds() } else { 1..2 } {
            let history = History::generate(&Shape::new(seed, records_for(&kind, 5_000, 500)));
            for times in [1, 2, 5] {
                whole(&kind, &history, times, seed).await;
            }
            misbehaving(&kind, &history, seed).await;
            println!("seed {seed}: {} records, exact on {kind:?}", history.records.len());
        }
    }
}

/// The whole history `times` over, in batches of random size; on a fresh engine, because the
/// embedded one gets slower with every stream record that it holds.
async fn whole(kind: &EngineKind, history: &History, times: usize, seed: u64) {
    let engine = RunningEngine::start(kind.clone()).await;
    let table = engine.create_table().await;
    let processor = processor(&engine, &table);
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
    engine.stop().await;
}

/// Batches redelivered, overlapped and split, and replayed from random identifiers
/// that the function reports although it had counted everything.
async fn misbehaving(kind: &EngineKind, history: &History, seed: u64) {
    let engine = RunningEngine::start(kind.clone()).await;
    let table = engine.create_table().await;
    let function = Fickle {
        inner: InProcess::new(processor(&engine, &table), Duration::from_secs(60)),
        rng: Mutex::new(fastrand::Rng::with_seed(seed)),
        reports: AtomicU64::new(0),
    };
    let settings = Settings {
        batch_size: BatchSize::new(history.records.len() / 30).unwrap(),
        backoff: Backoff { first: Duration::ZERO, longest: Duration::ZERO },
    };
    let source = RecordedSource::new(history.records.clone());
    let delivery = AtLeastOnce::seeded(&function, seed);
    Poller::new(source, &delivery, settings).drain().await.unwrap();
    let (reports, delivered) = (function.reports.load(Ordering::SeqCst), delivery.delivered());
    assert!(reports > 0 && delivered > history.records.len(), "{reports}, {delivered}");
    let found = read_usages(engine.client(), &table).await;
    assert_exact(&found, history, &format!("seed {seed}, misbehaving delivery"));
    engine.stop().await;
}

/// Counts every batch and then, half the time, reports a failure from some record on.
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
            let sequence = StreamRecord::stream_and_sequence_of(records[index].get()).1.unwrap();
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
        let history = History::generate(&Shape::new(7, records_for(engine.kind(), 2_000, 300)));
        let table = engine.create_table().await;
        let run = async |seed| {
            let function = InProcess::new(processor(engine, &table), Duration::from_secs(60));
            let settings =
                Settings { batch_size: BatchSize::new(100).unwrap(), ..Settings::default() };
            let source = RecordedSource::new(history.records.clone());
            let delivery = AtLeastOnce::seeded(function, seed);
            Poller::new(source, delivery, settings).drain().await.unwrap();
        };
        // Both from the trim horizon, as in a blue/green switch.
        tokio::join!(run(1), run(2));
        assert_exact(&read_usages(engine.client(), &table).await, &history, "two processors");
    })
    .await;
}

/// One of them is delayed between the two updates of a window, and the other overtakes it.
#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_processor_tells_what_it_counted_from_what_it_dropped() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
        let slow = Processor::new(client, sluicegate_processor::Settings::new(&table));
        proxy.inject(|call| {
            let second = contains(call.body, b"\"u_l200\"");
            if second { Fault::Delay(Duration::from_secs(2)) } else { Fault::None }
        });
        let batch = acquires_of_limits("u", 400);
        let overtake = async {
            // Two for the first half, two that are delayed.
            while proxy.received("UpdateItem") < 4 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            deliver(&processor(engine, &table), &batch).await
        };
        let (slow, fast) = tokio::join!(deliver(&slow, &batch), overtake);
        for outcome in [slow, fast] {
            let report = outcome.report;
            assert_eq!((report.window_updates, report.duplicates_dropped), (2, 200));
        }
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "u").unwrap().events, 400);
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
        assert_eq!((first.report.window_updates, first.report.duplicates_dropped), (2, 0));
        // Overlaps by two, and carries one record twice.
        let mut overlapping = records[1..6].to_vec();
        overlapping.push(records[5].clone());
        let second = deliver(&processor, &overlapping).await;
        assert_eq!((second.report.window_updates, second.report.duplicates_dropped), (2, 3));
        let third = deliver(&processor, &records[..6]).await;
        assert_eq!((third.report.window_updates, third.report.duplicates_dropped), (0, 6));
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "u").unwrap().events, 6);
    })
    .await;
}

/// A watermark that expires before the stream can no longer deliver its records is a double count.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_the_past_is_kept_from_now_on() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let table = engine.create_table().await;
    let processor = processor(&engine, &table);
    // Half a year before anybody runs this.
    deliver(&processor, &[acquire("u", 1, 0, 1_000)]).await;
    assert_eq!(engine.embedded().unwrap().sweep_ttl().await.unwrap(), 0);
    let again = deliver(&processor, &[acquire("u", 1, 0, 1_000)]).await;
    assert_eq!(again.report.duplicates_dropped, 1);
    engine.stop().await;
}

/// Identifiers are numbers; in a list that is not in their order the whole batch comes again.
#[tokio::test(flavor = "multi_thread")]
async fn failures_in_a_disordered_batch_lose_nothing() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let table = engine.create_table().await;
    let proxy = Proxy::start(engine.endpoint_url()).await;
    let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
    proxy.inject(|call| if call.number <= 8 { Fault::THROTTLED } else { Fault::None });
    let processor = Processor::new(client, sluicegate_processor::Settings::new(&table));
    let function = InProcess::new(processor, Duration::from_millis(50));
    let records =
        vec![acquire("a", 50, 0, 1_000), acquire("b", 10, 0, 1_000), acquire("c", 60, 0, 1_000)];
    let mut poller = Poller::new(RecordedSource::new(records), function, Settings::default());
    poller.drain().await.unwrap();
    let found = read_usages(engine.client(), &table).await;
    for entity in ["a", "b", "c"] {
        assert_eq!(hour_of(&found, entity).map(|hour| hour.events), Some(1), "{entity}");
    }
    engine.stop().await;
}
