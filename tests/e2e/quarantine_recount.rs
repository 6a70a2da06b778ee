//! Records from quarantine are counted once, whichever delivery counts them.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::TryStreamExt;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use sluicegate::dynamo::Reader;
use sluicegate_core::keys::{Digest, ItemKey, PK, QuarantineId, SK};
use sluicegate_core::{QuarantineEntry, QuarantineState, StreamRecord, WindowKind};
use sluicegate_processor::{IfUnknown, Processor, Recounted, Retention, Settings};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{Fault, Proxy, RunningEngine};

use crate::support::{acquire, deliver, hour_of, on_every_engine, processor};

const HOUR: &str = "#USAGE#gpt-4#hour#2026-01-28T14:00:00Z";

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

/// Every entry of the quarantine.
async fn entries(engine: &RunningEngine, table: &str) -> Vec<QuarantineEntry> {
    let reader = Reader::new(engine.client().clone(), table);
    reader.quarantine().try_collect().await.unwrap()
}

/// An entry of a record that a version before this one could not read.
async fn quarantined(engine: &RunningEngine, table: &str, record: &RawValue) -> QuarantineEntry {
    let (stream, sequence) = StreamRecord::stream_and_sequence_of(record.get());
    let id = QuarantineId { stream, sequence, digest: Digest(7), kind: None };
    let key = ItemKey::Quarantine(id);
    let put = engine.client().put_item().table_name(table);
    let put = put.item(PK, text(&key.pk())).item(SK, text(&key.sk()));
    let put = put.item("record", text(record.get())).item("reason", text("odd"));
    put.item("state", text("open")).send().await.unwrap();
    let entries = entries(engine, table).await;
    entries.into_iter().find(|entry| entry.key() == key).unwrap()
}

/// `(rpm, events)` of the hour of an entity.
async fn hour(engine: &RunningEngine, table: &str, entity: &str) -> Option<(i128, u64)> {
    let found = read_usages(engine.client(), table).await;
    hour_of(&found, entity)
        .map(|usage| (usage.consumed_milli.get("rpm").copied().unwrap_or(0), usage.events))
}

fn is_counted(recounted: &Recounted) -> bool {
    matches!(recounted, Recounted::Counted(_))
}

/// The same record, which the stream still has.
fn created_now(record: &RawValue) -> Box<RawValue> {
    let mut record: Value = serde_json::from_str(record.get()).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    record["dynamodb"]["ApproximateCreationDateTime"] = json!(now);
    // The write moved the refill timestamp, so that is when it happened.
    record["dynamodb"]["OldImage"]["rf"] = json!({"N": "1"});
    to_raw_value(&record).unwrap()
}

/// A window whose counter was replaced by text, and its figures once it is repaired.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_gets_what_it_could_not_take() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let window = engine.client().put_item().table_name(&table).item(PK, text("ENTITY#u"));
        window.item(SK, text(HOUR)).item("u_rpm", text("broken")).send().await.unwrap();
        let batch: Vec<_> = (0..20).map(|n| created_now(&acquire("u", n, 0, 1_000))).collect();
        assert_eq!(deliver(&processor, &batch).await.report.quarantined, 20);
        let entry = entries(engine, &table).await.remove(0);
        let failed = processor.recount(&entry, IfUnknown::Leave).await;
        assert!(matches!(failed, Recounted::Failed(_)), "still broken: {failed:?}");

        let repair = engine.client().update_item().table_name(&table);
        let repair = repair.key(PK, text("ENTITY#u")).key(SK, text(HOUR));
        repair.update_expression("REMOVE u_rpm").send().await.unwrap();
        for entry in entries(engine, &table).await {
            let recounted = processor.recount(&entry, IfUnknown::Leave).await;
            assert!(is_counted(&recounted), "{recounted:?}");
            let again = processor.recount(&entry, IfUnknown::Leave).await;
            assert_eq!(again, Recounted::Closed, "an entry that was read before");
        }
        deliver(&processor, &batch).await;
        deliver(&processor, &[created_now(&acquire("u", 20, 0, 7))]).await;
        assert_eq!(hour(engine, &table, "u").await, Some((20_007, 21)));
        let found = read_usages(engine.client(), &table).await;
        let day = found.iter().find(|(id, _)| id.2 == "day").unwrap().1;
        assert_eq!((day.consumed_milli["rpm"], day.events), (20_007, 21));
        let states = entries(engine, &table).await.into_iter().map(|entry| entry.state);
        assert!(states.eq([QuarantineState::Done; 20]));
    })
    .await;
}

/// Quarantined by an old version; then a batch is delivered again to one that can read the record.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_a_newer_version_counted_on_redelivery_is_not_counted_again() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        for (entity, record) in [
            ("old", acquire("old", 5, 0, 1_000)),
            ("new", created_now(&acquire("new", 5, 0, 1_000))),
        ] {
            let entry = quarantined(engine, &table, &record).await;
            deliver(&processor, &[acquire(entity, 4, 0, 7), record]).await;
            for if_unknown in [IfUnknown::Leave, IfUnknown::Count] {
                let recounted = processor.recount(&entry, if_unknown).await;
                let expected = match if_unknown {
                    IfUnknown::Leave => Recounted::AlreadyCounted,
                    IfUnknown::Count => Recounted::Closed,
                };
                assert_eq!(recounted, expected, "{entity}");
            }
            assert_eq!(hour(engine, &table, entity).await, Some((1_007, 2)), "{entity}");
        }
    })
    .await;
}

/// The stack keeps windows for ever, and the recount is not told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_recount_leaves_the_expiry_of_a_window_that_exists() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let record = acquire("u", 5, 0, 1_000);
        let entry = quarantined(engine, &table, &record).await;
        let forever = Settings { retention: Retention::Forever, ..Settings::new(&table) };
        deliver(&Processor::new(engine.client().clone(), forever), &[acquire("u", 4, 0, 7)]).await;
        let recounted = processor(engine, &table).recount(&entry, IfUnknown::Leave).await;
        assert!(is_counted(&recounted), "{recounted:?}");
        assert_eq!(hour(engine, &table, "u").await, Some((1_007, 2)));
        let items = engine.client().scan().table_name(&table).send().await.unwrap();
        let windows: Vec<_> =
            items.items().iter().filter(|item| item.contains_key("events")).collect();
        assert_eq!(windows.len(), 2);
        assert!(windows.iter().all(|window| !window.contains_key("ttl")), "{windows:?}");
    })
    .await;
}

/// The operator waited two days, as long as windows are kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_recount_keeps_a_window_that_is_about_to_be_deleted() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let record = acquire("u", 5, 0, 1_000);
        let entry = quarantined(engine, &table, &record).await;
        let processor = processor(engine, &table);
        deliver(&processor, &[acquire("u", 4, 0, 7)]).await;
        let update = engine.client().update_item().table_name(&table).key(PK, text("ENTITY#u"));
        let soon = update.key(SK, text(HOUR)).update_expression("SET #ttl = :soon");
        let soon = soon.expression_attribute_names("#ttl", "ttl");
        let soon = soon.expression_attribute_values(":soon", AttributeValue::N("5".to_owned()));
        soon.send().await.unwrap();
        assert!(is_counted(&processor.recount(&entry, IfUnknown::Leave).await));
        let found = engine.client().get_item().table_name(&table).key(PK, text("ENTITY#u"));
        let window = found.key(SK, text(HOUR)).send().await.unwrap().item.unwrap();
        let expiry_s: u64 = window["ttl"].as_n().unwrap().parse().unwrap();
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let days = (expiry_s - now_s).div_ceil(86_400);
        assert_eq!(days, 2);
    })
    .await;
}

/// A delivery counted the record in its hour, and failed in its day until the stream dropped it.
#[tokio::test(flavor = "multi_thread")]
async fn recount_adds_the_record_to_the_window_that_lacks_it() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let record = acquire("u", 5, 0, 1_000);
        let entry = quarantined(engine, &table, &record).await;
        let hours = Settings { window_kinds: WindowKind::Hour.into(), ..Settings::new(&table) };
        deliver(&Processor::new(engine.client().clone(), hours), &[record]).await;
        let processor = processor(engine, &table);
        let Recounted::Counted(windows) = processor.recount(&entry, IfUnknown::Leave).await else {
            panic!("the day lacks the record")
        };
        assert_eq!(windows.len(), 1);
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(found.len(), 2);
        assert!(
            found.values().all(|usage| (usage.consumed_milli["rpm"], usage.events) == (1_000, 1))
        );
        assert_eq!(processor.recount(&entry, IfUnknown::Leave).await, Recounted::Closed);
    })
    .await;
}

/// The first record that a newer version reads is the last one of its hour: the day has counted a
/// later record meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_counted_in_its_hour_only_is_not_taken_for_counted() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let record = acquire("u", 5, 0, 1_000);
        let entry = quarantined(engine, &table, &record).await;
        let mut next: Value = serde_json::from_str(acquire("u", 6, 0, 7).get()).unwrap();
        let an_hour_later = 1_769_608_800_i64 + 3_600;
        next["dynamodb"]["ApproximateCreationDateTime"] = json!(an_hour_later);
        next["dynamodb"]["NewImage"]["rf"] = json!({"N": (an_hour_later * 1_000).to_string()});
        deliver(&processor, &[to_raw_value(&next).unwrap()]).await;
        assert_eq!(deliver(&processor, &[record]).await.report.partly_counted, 1);
        assert_eq!(hour(engine, &table, "u").await, Some((1_000, 1)));
        let early = processor.recount(&entry, IfUnknown::Leave).await;
        assert!(matches!(early, Recounted::Undecided(_)), "{early:?}");
        let recounted = processor.recount(&entry, IfUnknown::Count).await;
        assert!(matches!(&recounted, Recounted::Counted(windows) if windows.len() == 1));
        assert_eq!(hour(engine, &table, "u").await, Some((1_000, 1)));
        let found = read_usages(engine.client(), &table).await;
        let day = found.iter().find(|(id, _)| id.2 == "day").unwrap().1;
        assert_eq!((day.consumed_milli["rpm"], day.events), (1_007, 2));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undecidable_entries_are_left_to_an_operator() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let record = created_now(&acquire("u", 5, 0, 1_000));
        let entry = quarantined(engine, &table, &record).await;
        for if_unknown in [IfUnknown::Leave, IfUnknown::Count] {
            // The stream still has it, and no watermark keeps it from being counted.
            let early = processor.recount(&entry, if_unknown).await;
            assert!(matches!(early, Recounted::Undecided(_)), "{early:?}");
        }
        assert_eq!(hour(engine, &table, "u").await, None);
        deliver(&processor, &[acquire("u", 6, 0, 7)]).await;
        let passed = processor.recount(&entry, IfUnknown::Leave).await;
        assert!(matches!(passed, Recounted::Undecided(_)), "{passed:?}");
        assert_eq!(hour(engine, &table, "u").await, Some((7, 1)));
        assert!(is_counted(&processor.recount(&entry, IfUnknown::Count).await));
        // The watermark prevents the stream from doing so again.
        deliver(&processor, &[record]).await;
        assert_eq!(processor.recount(&entry, IfUnknown::Count).await, Recounted::Closed);
        assert_eq!(hour(engine, &table, "u").await, Some((1_007, 2)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_no_stream_has_any_more_is_counted() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let entry = quarantined(engine, &table, &acquire("u", 5, 0, 1_000)).await;
        assert!(is_counted(&processor.recount(&entry, IfUnknown::Leave).await));
        assert_eq!(hour(engine, &table, "u").await, Some((1_000, 1)));

        let malformed =
            quarantined(engine, &table, &to_raw_value(&json!({"odd": 1})).unwrap()).await;
        let recounted = processor.recount(&malformed, IfUnknown::Count).await;
        assert!(matches!(recounted, Recounted::Uncountable(_)), "{recounted:?}");
        let nothing = acquire("u", 6, 0, 0);
        let nothing = quarantined(engine, &table, &nothing).await;
        let recounted = processor.recount(&nothing, IfUnknown::Leave).await;
        assert_eq!(recounted, Recounted::NothingToCount);

        assert_eq!(processor.give_up(&malformed).await, Recounted::GivenUp);
        assert_eq!(processor.give_up(&entry).await, Recounted::Closed, "it was counted");
        let mut states: Vec<_> =
            entries(engine, &table).await.iter().map(|entry| entry.state.as_str()).collect();
        states.sort_unstable();
        assert_eq!(states, ["done", "done", "dropped"]);
        assert_eq!(hour(engine, &table, "u").await, Some((1_000, 1)));
    })
    .await;
}

/// A recount trusts neither a watermark missing from an empty answer nor an unconfirmed
/// transaction.
#[tokio::test(flavor = "multi_thread")]
async fn recount_believes_no_empty_answer() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
        let behind = Processor::new(client, Settings::new(&table));
        let entry = quarantined(engine, &table, &acquire("u", 5, 0, 1_000)).await;
        for operation in ["GetItem", "TransactWriteItems"] {
            proxy.inject(move |call| {
                if call.operation == operation { Fault::Blank("{}") } else { Fault::None }
            });
            let recounted = behind.recount(&entry, IfUnknown::Leave).await;
            assert!(matches!(recounted, Recounted::Failed(_)), "{operation}: {recounted:?}");
            assert_eq!(hour(engine, &table, "u").await, None);
        }
        proxy.inject(|_| Fault::None);
        assert!(is_counted(&behind.recount(&entry, IfUnknown::Leave).await));
        assert_eq!(hour(engine, &table, "u").await, Some((1_000, 1)));
    })
    .await;
}

/// More limits than a transaction takes, answers that are lost and a recount that dies halfway.
#[tokio::test(flavor = "multi_thread")]
async fn recount_that_is_cut_off_goes_on_where_it_was() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let mut record: Value = serde_json::from_str(acquire("u", 5, 0, 1_000).get()).unwrap();
        for limit in 0..450 {
            record["dynamodb"]["NewImage"][format!("b_limit-{limit}_tc")] = json!({"N": "1"});
        }
        let record = to_raw_value(&record).unwrap();
        let direct = processor(engine, &table);
        assert_eq!(deliver(&direct, &[record]).await.report.quarantined, 2);

        let proxy = Proxy::start(engine.endpoint_url()).await;
        let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
        let behind = Processor::new(client, Settings::new(&table));
        for faulty in [Fault::LoseReply, Fault::Cut] {
            // Of three transactions, the second one.
            proxy.reset_counts();
            proxy.inject(move |call| match (call.operation, call.number) {
                ("TransactWriteItems", 2) => faulty.clone(),
                _ => Fault::None,
            });
            let open = entries(engine, &table).await;
            let entry = open.iter().find(|entry| entry.state == QuarantineState::Open).unwrap();
            let cut_off = behind.recount(entry, IfUnknown::Leave).await;
            assert!(matches!(cut_off, Recounted::Failed(_)), "{cut_off:?}");
            assert_eq!(
                behind.recount(entry, IfUnknown::Leave).await,
                Recounted::Closed,
                "out of date"
            );
            let now = entries(engine, &table).await;
            let now = now.iter().find(|now| now.key() == entry.key()).unwrap();
            assert!(now.counted_limits >= 200);
            assert!(is_counted(&behind.recount(now, IfUnknown::Leave).await));
        }
        for usage in read_usages(engine.client(), &table).await.values() {
            assert_eq!((usage.consumed_milli.len(), usage.events), (451, 1));
            let sum: i128 = usage.consumed_milli.values().sum();
            assert_eq!(sum, 1_450);
        }
    })
    .await;
}
