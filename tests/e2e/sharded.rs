//! Buckets in shards, as zae-limiter 0.10 and later keeps them: exact windows beside its own
//! aggregator, from generated histories, from a recording of version 0.17, and from 0.17 itself.

mod peer;

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use sluicegate::dynamo::Reader;
use sluicegate_core::keys::{ItemKey, PK, SK};
use sluicegate_core::{StreamRecord, WindowKind, extract_shard_deltas};
use sluicegate_local::InProcess;
use sluicegate_local::poller::{BatchSize, Poller, Settings};
use sluicegate_processor::{self as processor, IfUnknown, Layouts, Processor, Recounted};
use sluicegate_testkit::history::{History, Shape, Usages};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{AtLeastOnce, RecordedSource, RunningEngine};

use crate::support::{Records, deliver, on_every_engine, records_for};

/// Granted millitokens by `entity resource limit`.
type Granted = BTreeMap<String, i128>;

fn processor(engine: &RunningEngine, table: &str) -> Processor {
    let layouts = Layouts::CompositeAndSharded;
    let settings = processor::Settings { layouts, ..processor::Settings::new(table) };
    Processor::new(engine.client().clone(), settings)
}

/// The sums of all windows of a kind.
fn sums(usages: &Usages, kind: &str) -> Granted {
    let mut sums = Granted::new();
    for ((entity, resource, _, _), usage) in usages.iter().filter(|(id, _)| id.2 == kind) {
        for (limit, milli) in &usage.consumed_milli {
            *sums.entry(format!("{entity} {resource} {limit}")).or_default() += milli;
        }
    }
    sums
}

/// The records of each item, in order. Nothing orders the records of two items.
fn by_item(records: Records) -> Vec<Records> {
    let mut lanes: BTreeMap<String, Records> = BTreeMap::new();
    for record in records {
        let value: Value = serde_json::from_str(record.get()).unwrap();
        lanes.entry(value["dynamodb"]["Keys"].to_string()).or_default().push(record);
    }
    lanes.into_values().collect()
}

/// Delivers each item's records in a stream shard of its own, all at once: split, overlapped and
/// repeated.
async fn deliver_at_once(processor: &Processor, lanes: &[Records], seed: u64) {
    let polls = lanes.iter().enumerate().map(async |(n, lane)| {
        let function = InProcess::new(processor.clone(), Duration::from_secs(60));
        let settings = Settings { batch_size: BatchSize::new(20).unwrap(), ..Settings::default() };
        let source = RecordedSource::new(lane.clone());
        let delivery = AtLeastOnce::seeded(function, seed + n as u64);
        Poller::new(source, &delivery, settings).drain().await.unwrap();
        delivery.delivered()
    });
    let delivered: usize = join_all(polls).await.iter().sum();
    assert!(delivered > lanes.iter().map(Vec::len).sum(), "no record came twice");
}

/// The history of ten buckets as that of ten shards of one bucket.
fn in_shards(history: History) -> (Vec<Records>, Usages) {
    let record = |record: Box<RawValue>| {
        let mut value: Value = serde_json::from_str(record.get()).unwrap();
        let change = &mut value["dynamodb"];
        let number =
            |key: &Value| key["S"].as_str().unwrap().rsplit('-').next().unwrap().to_owned();
        let shard = format!("{}{}", number(&change["Keys"]["PK"]), number(&change["Keys"]["SK"]));
        let shard: u32 = shard.parse().unwrap();
        for part in ["Keys", "OldImage", "NewImage"] {
            if change.get(part).is_some() {
                change[part]["PK"] = json!({"S": format!("ns/BUCKET#team#model#{shard}")});
                change[part]["SK"] = json!({"S": "#STATE"});
            }
        }
        to_raw_value(&value).unwrap()
    };
    let mut windows = Usages::new();
    for ((_, _, kind, start), usage) in history.windows {
        let window = windows.entry(("ns/team".into(), "model".into(), kind, start)).or_default();
        window.events += usage.events;
        for (limit, milli) in usage.consumed_milli {
            *window.consumed_milli.entry(limit).or_default() += milli;
        }
    }
    (by_item(history.records.into_iter().map(record).collect()), windows)
}

#[tokio::test(flavor = "multi_thread")]
async fn history_of_a_bucket_in_shards_is_exact_however_it_is_delivered() {
    on_every_engine(async |engine| {
        for seed in 1..3 {
            let shape = Shape::new(seed, records_for(engine.kind(), 1_000, 200));
            let (lanes, windows) = in_shards(History::generate(&shape));
            assert_eq!(lanes.len(), 10);
            let table = engine.create_table().await;
            let (one, other) = (processor(engine, &table), processor(engine, &table));
            tokio::join!(
                deliver_at_once(&one, &lanes, seed),
                deliver_at_once(&other, &lanes, seed + 100)
            );
            assert_eq!(read_usages(engine.client(), &table).await, windows, "seed {seed}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_ignored_unless_switched_on() {
    on_every_engine(async |engine| {
        let (lanes, _) = in_shards(History::generate(&Shape::new(5, 50)));
        let table = engine.create_table().await;
        let outcome = deliver(&crate::support::processor(engine, &table), &lanes.concat()).await;
        assert_eq!((outcome.report.records, outcome.report.window_updates), (50, 0));
        assert!(read_usages(engine.client(), &table).await.is_empty());
    })
    .await;
}

/// A run of [`peer`], recorded: its stream, and the grants of its producers.
fn recorded() -> (Vec<Records>, Granted) {
    let records = include_str!("sharded/zae-limiter-0.17.jsonl").lines();
    let records = records.map(|line| RawValue::from_string(line.to_owned()).unwrap());
    let granted = include_str!("sharded/zae-limiter-0.17.granted.json");
    (by_item(records.collect()), serde_json::from_str(granted).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_grants_of_four_producers_are_the_windows() {
    let (lanes, granted) = recorded();
    let shards = |text: &str| lanes.iter().filter(|lane| lane[0].get().contains(text)).count();
    assert_eq!(shards("BUCKET#user-0#gpt-4#"), 2 * 4, "doubled twice in two namespaces");
    on_every_engine(async |engine| {
        for seed in 0..3 {
            let table = engine.create_table().await;
            let processor = processor(engine, &table);
            deliver_at_once(&processor, &lanes, seed * 100).await;
            deliver(&processor, &lanes.concat()).await;
            let found = read_usages(engine.client(), &table).await;
            assert_eq!(sums(&found, "hour"), granted, "seed {seed}");
            assert_eq!(sums(&found, "day"), granted, "seed {seed}");
        }
    })
    .await;
}

/// A window whose counter is text takes nothing until it is repaired.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_shards_that_a_window_could_not_take_are_counted_from_quarantine() {
    on_every_engine(async |engine| {
        let (lanes, granted) = recorded();
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let first = StreamRecord::from_json(lanes[0][0].get()).unwrap();
        let first = extract_shard_deltas(&first).unwrap().unwrap();
        let hour = WindowKind::Hour.containing(first.at);
        let window = ItemKey::Usage(first.entity, first.resource, hour);
        let key = || [(PK, window.pk()), (SK, window.sk())];
        let key = || key().map(|(name, text)| (name.to_owned(), AttributeValue::S(text))).into();
        let update = || engine.client().update_item().table_name(&table).set_key(Some(key()));
        let broken = update().expression_attribute_values(":text", AttributeValue::S("?".into()));
        broken.update_expression("SET u_rpm = :text").send().await.unwrap();
        let outcome = deliver(&processor, &lanes.concat()).await;
        assert!(outcome.report.quarantined > 0, "{:?}", outcome.report);
        update().update_expression("REMOVE u_rpm").send().await.unwrap();

        let reader = Reader::new(engine.client().clone(), &table);
        let entries: Vec<_> = reader.quarantine().try_collect().await.unwrap();
        assert_eq!(entries.len() as u64, outcome.report.quarantined);
        for entry in entries {
            let recounted = processor.recount(&entry, IfUnknown::Leave).await;
            assert!(matches!(recounted, Recounted::Counted(_)), "{recounted:?}");
        }
        deliver(&processor, &lanes.concat()).await;
        assert_eq!(sums(&read_usages(engine.client(), &table).await, "hour"), granted);
    })
    .await;
}
