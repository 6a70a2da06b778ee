//! Records that cannot be counted are kept, once, and the batch continues.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use sluicegate_core::StreamRecord;
use sluicegate_core::keys::{PK, SK};
use sluicegate_processor::{Processor, Settings};
use sluicegate_testkit::usage::{read_quarantine, read_usages};
use sluicegate_testkit::{Fault, Proxy, RunningEngine};

use crate::support::{
    Records, acquire, acquires_of_limits, deliver, hour_of, on_every_engine, processor, soon,
};

fn changed(n: u64, change: impl FnOnce(&mut Value)) -> Box<RawValue> {
    let mut record: Value = serde_json::from_str(acquire("malformed", n, 0, 1_000).get()).unwrap();
    change(&mut record);
    to_raw_value(&record).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_records_are_kept_once_and_the_rest_is_counted() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let batch: Records = vec![
            acquire("good", 1, 0, 1_000),
            changed(2, |record| {
                drop(record["dynamodb"].as_object_mut().unwrap().remove("OldImage"))
            }),
            changed(3, |record| record["dynamodb"]["NewImage"]["b_rpm_tc"] = json!({"N": "1.5"})),
            changed(4, |record| record["dynamodb"]["OldImage"]["b_rpm_tc"] = json!({"S": "1"})),
            changed(5, |record| record["dynamodb"]["Keys"] = json!(7)),
            to_raw_value(&json!(["not", "a", "record"])).unwrap(),
            acquire("good", 6, 0, 1_000),
        ];
        let first = deliver(&processor, &batch).await;
        assert_eq!(first.report.quarantined, 5);
        let entries = read_quarantine(engine.client(), &table).await;
        let reasons: Vec<&str> =
            entries.values().map(|entry| entry["reason"].as_s().unwrap().as_str()).collect();
        assert!(reasons.iter().any(|reason| reason.contains("NEW_AND_OLD_IMAGES")), "{reasons:?}");
        assert!(entries.values().all(|entry| entry["state"].as_s().unwrap() == "open"));
        let kept: Vec<&str> =
            entries.values().map(|entry| entry["record"].as_s().unwrap().as_str()).collect();
        assert!(kept.contains(&batch[2].get()), "the record stands there word for word");

        // Delivered again: nothing is added, and an entry that was counted since stays done.
        let (id, done) = entries.iter().next().unwrap();
        let mut done = done.clone();
        done.insert("state".to_owned(), AttributeValue::S("done".to_owned()));
        put(engine, &table, done).await;
        let again = deliver(&processor, &batch).await;
        assert_eq!((again.report.quarantined, again.quarantined.len()), (0, 5));
        let after = read_quarantine(engine.client(), &table).await;
        assert_eq!(after.len(), 5);
        assert_eq!(after[id]["state"].as_s().unwrap(), "done");
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "good").unwrap().consumed_milli["rpm"], 2_000);
    })
    .await;
}

/// A window whose counter was replaced by text cannot be added to. Its records are kept, the other
/// window of the same records counts, and repairing the window later doubles nothing.
#[tokio::test(flavor = "multi_thread")]
async fn broken_window_quarantines_its_records_for_good() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let sk = "#USAGE#gpt-4#hour#2026-01-28T14:00:00Z";
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let mut broken = std::collections::HashMap::from([
            (PK.to_owned(), text("ENTITY#u")),
            (SK.to_owned(), text(sk)),
            ("u_rpm".to_owned(), text("broken")),
        ]);
        put(engine, &table, broken.clone()).await;
        let batch: Records = (0..150).map(|n| acquire("u", n, 0, 1_000)).collect();

        let outcome = deliver(&processor, &batch).await;
        assert_eq!((outcome.report.quarantined, outcome.report.window_updates), (150, 1));
        let entries = read_quarantine(engine.client(), &table).await;
        assert_eq!(entries.len(), 150);
        assert!(entries.keys().all(|id| id.ends_with("#hour")), "only the hour is missing");

        // Repaired, with the watermark that the window got meanwhile.
        let item = engine
            .client()
            .get_item()
            .table_name(&table)
            .key(PK, text("ENTITY#u"))
            .key(SK, text(sk));
        broken = item.send().await.unwrap().item.unwrap();
        broken.insert("u_rpm".to_owned(), AttributeValue::N("0".to_owned()));
        put(engine, &table, broken).await;
        let again = deliver(&processor, &batch).await;
        assert_eq!((again.report.quarantined, again.report.window_updates), (0, 0));
        let next = deliver(&processor, &[acquire("u", 150, 0, 7)]).await;
        assert_eq!(next.report.window_updates, 2);
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "u").unwrap().consumed_milli["rpm"], 7);
        let day = found.iter().find(|(id, _)| id.2 == "day").unwrap().1;
        assert_eq!((day.events, day.consumed_milli["rpm"]), (151, 150_007));
    })
    .await;
}

/// An acquire that changes this many limits at once; more than one expression can name.
fn many_limits(entity: &str, n: u64, limits: usize, padding: usize) -> Box<RawValue> {
    let mut record: Value = serde_json::from_str(acquire(entity, n, 0, 1_000).get()).unwrap();
    for limit in 0..limits {
        record["dynamodb"]["NewImage"][format!("b_limit-{limit}_tc")] = json!({"N": "1"});
    }
    record["dynamodb"]["NewImage"]["padding"] = json!({"S": "x".repeat(padding)});
    to_raw_value(&record).unwrap()
}

/// An over-long expression is refused before its condition is checked. So only the transaction
/// tells a redelivery that the watermark is at or past the records.
#[tokio::test(flavor = "multi_thread")]
async fn quarantined_records_stay_skipped_by_the_watermark_after_redelivery_and_lost_replies() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
        let behind = Processor::new(client, Settings::new(&table));
        proxy.inject(|call| match (call.operation, call.number) {
            ("TransactWriteItems" | "PutItem", ..=2) => Fault::LoseReply,
            _ => Fault::None,
        });
        let malformed = changed(3, |record| record["dynamodb"]["NewImage"] = Value::Null);
        let batch: Records = vec![
            acquire("u", 1, 0, 1_000),
            many_limits("u", 2, 400, 0),
            malformed,
            acquire("u", 4, 0, 1_000),
        ];
        let first = deliver(&behind, &batch).await;
        assert_eq!(first.report.quarantined, 3, "a lost reply is not silence: {first:?}");
        for _ in 0..2 {
            let again = deliver(&behind, &batch).await;
            assert_eq!((again.report.window_updates, again.report.quarantined), (0, 0));
        }
        let entries = read_quarantine(engine.client(), &table).await;
        assert_eq!(entries.len(), 3, "the record for each kind of window, and the malformed one");
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "u").unwrap().consumed_milli["rpm"], 2_000);
    })
    .await;
}

/// A record that is not in quarantine yet holds back those behind it: a version that can read it
/// still counts it, between the others.
#[tokio::test(flavor = "multi_thread")]
async fn failed_entry_holds_back_the_records_behind_it() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
        let processor = Processor::new(client, Settings::new(&table));
        proxy.inject(|call| match call.operation {
            "PutItem" => Fault::DENIED,
            _ => Fault::None,
        });
        let unread = |record: &mut Value| record["dynamodb"]["OldImage"] = json!(7);
        let mut batch: Records = vec![
            acquire("malformed", 1, 0, 1_000),
            changed(2, unread),
            acquire("malformed", 3, 0, 1_000),
        ];
        let first = processor.handle(&batch, soon(60)).await;
        let failed = &first.response.unwrap().batch_item_failures;
        let position = StreamRecord::stream_and_sequence_of(batch[1].get()).1.unwrap();
        assert_eq!(failed[0].item_identifier, Some(position.to_string()));
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "malformed").unwrap().consumed_milli["rpm"], 1_000);

        batch[1] = changed(2, |_| {});
        let again = deliver(&processor, &batch[1..]).await;
        assert_eq!(again.report.duplicates_dropped, 0);
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "malformed").unwrap().consumed_milli["rpm"], 3_000);
    })
    .await;
}

/// A window that failed before an uncountable record is not written for the records behind it.
#[tokio::test(flavor = "multi_thread")]
async fn failed_window_holds_back_the_records_behind_an_uncountable_one() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
        let processor = Processor::new(client, Settings::new(&table));
        proxy.inject(|call| match (call.operation, call.number) {
            ("UpdateItem", ..=2) => Fault::DENIED,
            _ => Fault::None,
        });
        let batch: Records = vec![
            acquire("u", 1, 0, 1_000),
            changed(2, |record| record["dynamodb"]["OldImage"] = json!(7)),
            acquire("u", 3, 0, 1_000),
        ];
        let first = processor.handle(&batch, soon(60)).await;
        let failed = &first.response.unwrap().batch_item_failures;
        let position = StreamRecord::stream_and_sequence_of(batch[0].get()).1.unwrap();
        assert_eq!(failed[0].item_identifier, Some(position.to_string()));
        assert_eq!(deliver(&processor, &batch).await.report.duplicates_dropped, 0);
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "u").unwrap().consumed_milli["rpm"], 2_000);
    })
    .await;
}

/// A deleted window loses its watermark, but not the entries of the records that it lacks.
#[tokio::test(flavor = "multi_thread")]
async fn quarantined_record_is_reported_again_when_its_window_is_new() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let batch = [many_limits("u", 1, 400, 0)];
        assert_eq!(deliver(&processor, &batch).await.report.quarantined, 2);
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let deletion = engine.client().delete_item().table_name(&table);
        let deletion = deletion.key(PK, text("ENTITY#u"));
        let deletion = deletion.key(SK, text("#USAGE#gpt-4#hour#2026-01-28T14:00:00Z"));
        deletion.send().await.unwrap();
        let entries = read_quarantine(engine.client(), &table).await;
        let (id, hour) = entries.iter().find(|(id, _)| id.ends_with("#hour")).unwrap();
        let mut done = hour.clone();
        done.insert("state".to_owned(), text("done"));
        put(engine, &table, done).await;

        let again = deliver(&processor, &batch).await;
        assert_eq!(again.report.quarantined, 0);
        let told: Vec<_> = again.quarantined.iter().map(|entry| entry.is_new).collect();
        assert_eq!(told, [false], "the hour, where the entry stood already");
        let after = read_quarantine(engine.client(), &table).await;
        assert_eq!((after.len(), &after[id]["state"]), (2, &text("done")));
        let third = deliver(&processor, &batch).await;
        assert_eq!((third.quarantined.len(), third.report.duplicates_dropped), (0, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_limits_in_one_batch_are_counted_however_it_is_cut() {
    on_every_engine(async |engine| {
        let records = acquires_of_limits("u", 400);
        for size in [400, 150, 7] {
            let table = engine.create_table().await;
            let processor = processor(engine, &table);
            for batch in records.chunks(size) {
                assert_eq!(deliver(&processor, batch).await.report.quarantined, 0);
            }
            let found = read_usages(engine.client(), &table).await;
            let hour = hour_of(&found, "u").unwrap();
            assert_eq!((hour.events, hour.consumed_milli.len()), (400, 400), "batches of {size}");
        }
    })
    .await;
}

/// Entries are large and many: more than a transaction holds, and more than an item.
#[tokio::test(flavor = "multi_thread")]
async fn large_records_are_kept_in_as_many_transactions_as_it_takes() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let mut batch: Records = (1..=30).map(|n| many_limits("u", n, 400, 250_000)).collect();
        batch.push(many_limits("u", 31, 400, 420_000));
        let long_name = "\u{7f}".repeat(60_000);
        batch.push(changed(32, |record| {
            record["dynamodb"]["NewImage"][format!("b_{long_name}_tc")] = json!({"S": "1"});
        }));
        let outcome = deliver(&processor, &batch).await;
        assert_eq!(outcome.report.quarantined, 63);
        let entries = read_quarantine(engine.client(), &table).await;
        assert_eq!(entries.values().filter(|entry| entry.contains_key("truncated")).count(), 2);
    })
    .await;
}

/// Positions order the records of one shard; two items may have the same one.
#[tokio::test(flavor = "multi_thread")]
async fn items_that_share_a_position_are_kept_apart() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let processor = processor(engine, &table);
        let malformed = |entity: &str| {
            let text = acquire(entity, 9, 0, 1_000).get().replace("OldImage", "Other");
            RawValue::from_string(text).unwrap()
        };
        let batch = [
            malformed("a"),
            malformed("b"),
            many_limits("c", 9, 400, 0),
            acquire("d", 9, 0, 1_000),
        ];
        deliver(&processor, &batch).await;
        let entries = read_quarantine(engine.client(), &table).await;
        assert_eq!(entries.len(), 4);
        assert_eq!(entries.keys().filter(|id| id.ends_with("#hour")).count(), 1);
        for (id, entry) in entries.iter().filter(|(id, _)| id.ends_with("#hour")) {
            assert_eq!(entry["record"].as_s().unwrap(), batch[2].get(), "{id}");
        }
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "d").unwrap().consumed_milli["rpm"], 1_000);
    })
    .await;
}

async fn put(
    engine: &RunningEngine,
    table: &str,
    item: std::collections::HashMap<String, AttributeValue>,
) {
    engine.client().put_item().table_name(table).set_item(Some(item)).send().await.unwrap();
}
