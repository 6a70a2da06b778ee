//! What cannot be counted is kept, once, and the batch goes on.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use sluicegate_core::keys::{PK, SK};
use sluicegate_testkit::RunningEngine;
use sluicegate_testkit::usage::{read_quarantine, read_usages};

use crate::support::{Records, acquire, deliver, hour_of, on_every_engine, processor};

fn changed(n: u64, change: impl FnOnce(&mut Value)) -> Box<serde_json::value::RawValue> {
    let mut record: Value = serde_json::from_str(acquire("odd", n, 0, 1_000).get()).unwrap();
    change(&mut record);
    to_raw_value(&record).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_records_are_kept_once_and_the_rest_is_counted() {
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
async fn a_window_that_cannot_take_records_is_passed_over_for_good() {
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
        assert_eq!((outcome.report.quarantined, outcome.report.windows_written), (150, 1));
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
        assert_eq!((again.report.quarantined, again.report.windows_written), (0, 0));
        let next = deliver(&processor, &[acquire("u", 150, 0, 7)]).await;
        assert_eq!(next.report.windows_written, 2);
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(hour_of(&found, "u").unwrap().consumed_milli["rpm"], 7);
        let day = found.iter().find(|(id, _)| id.2 == "day").unwrap().1;
        assert_eq!((day.events, day.consumed_milli["rpm"]), (151, 150_007));
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
