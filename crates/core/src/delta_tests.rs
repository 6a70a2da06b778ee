//! Tests of [`super::extract_deltas`], on records spelled as Lambda spells them.

use super::*;
use aws_lambda_events::event::dynamodb::EventRecord;
use proptest::prelude::*;
use serde_json::{Value, json};

const RF: i64 = 1_706_000_000_000;

fn image(rf: i64, counters: &[(&str, i64)]) -> Value {
    let mut image = json!({
        "PK": {"S": "ENTITY#user-123"}, "SK": {"S": "#BUCKET#gpt-4"},
        "entity_id": {"S": "user-123"}, "resource": {"S": "gpt-4"}, "rf": {"N": rf.to_string()},
    });
    for (limit, consumed) in counters {
        image[format!("b_{limit}_tc")] = json!({"N": consumed.to_string()});
        image[format!("b_{limit}_tk")] = json!({"N": (100_000 - consumed).to_string()});
    }
    image
}

fn record(event: &str, old: Option<Value>, new: Option<Value>) -> Value {
    let mut record = json!({
        "eventID": "e", "eventName": event, "awsRegion": "eu-west-1",
        "eventSourceARN": "arn:aws:dynamodb:eu-west-1:1:table/t/stream/2026-01-28T14:00:00.000",
        "dynamodb": {
            "ApproximateCreationDateTime": RF / 1_000 + 7,
            "Keys": {"PK": {"S": "ENTITY#user-123"}, "SK": {"S": "#BUCKET#gpt-4"}},
            "SequenceNumber": "100000000003498069978", "SizeBytes": 300,
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
    });
    for (name, image) in [("OldImage", old), ("NewImage", new)] {
        if let Some(image) = image {
            record["dynamodb"][name] = image;
        }
    }
    record
}

fn extract(record: &Value) -> Result<Option<RecordDeltas<'static>>, RecordError> {
    // Leaked, so that a test need not hold the text.
    extract_deltas(&StreamRecord::from_json(record.to_string().leak()).unwrap())
}

fn named(record: &Value) -> Vec<(String, i64)> {
    let deltas = extract(record).unwrap().map(|r| r.deltas).unwrap_or_default();
    let milli = |delta: &Delta| i64::try_from(delta.consumed_milli).unwrap();
    deltas.iter().map(|delta| (delta.limit.to_string(), milli(delta))).collect()
}

#[test]
fn an_insert_counts_from_zero() {
    let record = record("INSERT", None, Some(image(RF, &[("rpm", 1_000), ("tpm", 500_000)])));
    let deltas = extract(&record).unwrap().unwrap();
    assert_eq!(named(&record), [("rpm".into(), 1_000), ("tpm".into(), 500_000)]);
    assert_eq!((deltas.entity.as_str(), deltas.resource.as_str()), ("user-123", "gpt-4"));
    assert_eq!(deltas.stream.as_str(), "2026-01-28T14:00:00.000");
    assert_eq!(deltas.at.get(), RF);
}

#[test]
fn an_insert_of_a_converted_item_was_counted_before() {
    let mut new = image(RF, &[("rpm", 1_000)]);
    new["mg"] = json!({"BOOL": true});
    assert_eq!(named(&record("INSERT", None, Some(new.clone()))), []);
    let modify = record("MODIFY", Some(new), Some(image(RF, &[("rpm", 1_500)])));
    assert_eq!(named(&modify), [("rpm".into(), 500)]);
}

#[test]
fn a_modify_compares_whatever_limits_come_and_go() {
    let old = image(RF, &[("gone", 7), ("rpm", 1_000), ("same", 3)]);
    let new = image(RF, &[("added", 40), ("rpm", 900), ("same", 3)]);
    let modify = record("MODIFY", Some(old), Some(new));
    assert_eq!(named(&modify), [("added".into(), 40), ("rpm".into(), -100)]);
}

#[test]
fn a_write_that_consumes_nothing_and_a_removal_give_nothing() {
    let old = image(RF, &[("rpm", 1_000)]);
    let refill_only = record("MODIFY", Some(old.clone()), Some(image(RF + 1, &[("rpm", 1_000)])));
    assert_eq!(named(&refill_only), []);
    assert_eq!(named(&record("REMOVE", Some(old), None)), []);
}

#[test]
fn items_that_are_no_composite_buckets_give_nothing() {
    for sk in
        ["#META", "#MARK#gpt-4#key-1", "#BUCKET#gpt-4#rpm", "#USAGE#gpt-4#day#2026-01-28T00:00:00Z"]
    {
        let mut record = record("INSERT", None, Some(json!({"b_rpm_tc": {"S": "broken"}})));
        record["dynamodb"]["Keys"]["SK"]["S"] = json!(sk);
        assert_eq!(named(&record), [], "{sk}");
    }
}

#[test]
fn the_time_is_the_refill_when_it_moved_and_the_creation_otherwise() {
    let at = |old_rf, new_rf, created: Value| {
        let (old, new) = (image(old_rf, &[("rpm", 1)]), image(new_rf, &[("rpm", 2)]));
        let mut record = record("MODIFY", Some(old), Some(new));
        record["dynamodb"]["ApproximateCreationDateTime"] = created;
        extract(&record).map(|r| r.unwrap().at.get())
    };
    let hours_later = RF / 1_000 + 9_000;
    assert_eq!(at(RF, RF + 5, json!(hours_later)).unwrap(), RF + 5);
    assert_eq!(at(RF + 5, RF, json!(hours_later)).unwrap(), RF, "pulled back by a right clock");
    assert_eq!(at(RF, RF, json!(hours_later)).unwrap(), hours_later * 1_000);
    assert_eq!(at(RF, RF, json!(1_706_009_000.5)).unwrap(), 1_706_009_000_500);
    assert_eq!(at(RF, RF, json!(RF / 1_000 - 60)).unwrap(), RF, "never before the refill");
    assert_eq!(at(RF, RF, Value::Null).unwrap(), RF);
    assert!(at(RF, -1, json!(hours_later)).is_err());
}

#[test]
fn without_any_time_there_is_no_window() {
    let mut new = image(RF, &[("rpm", 1)]);
    new.as_object_mut().unwrap().remove("rf");
    let mut record = record("INSERT", None, Some(new));
    assert_eq!(extract(&record).unwrap().unwrap().at.get(), RF + 7_000);
    record["dynamodb"]["ApproximateCreationDateTime"] = json!(1e300);
    assert!(matches!(extract(&record), Err(RecordError::NoTime)));
}

#[test]
fn a_missing_image_means_the_wrong_view_type() {
    let new = image(RF, &[("rpm", 1)]);
    for (event, old, new, missing) in [
        ("MODIFY", None, Some(new.clone()), "OldImage"),
        ("MODIFY", Some(json!({})), Some(new.clone()), "OldImage"),
        ("MODIFY", Some(new), None, "NewImage"),
        ("INSERT", None, None, "NewImage"),
    ] {
        match extract(&record(event, old, new)) {
            Err(RecordError::WrongViewType { image, .. }) => assert_eq!(image, missing),
            other => panic!("{event}: {other:?}"),
        }
    }
}

#[test]
fn a_broken_counter_in_either_image_spoils_the_record() {
    let good = image(RF, &[("rpm", 1), ("tpm", 1)]);
    for broken in [json!({"N": "1.5"}), json!({"S": "1"}), json!({"N": ""}), json!({"N": "9e99"})] {
        let mut bad = image(RF, &[("rpm", 5), ("tpm", 2)]);
        bad["b_rpm_tc"] = broken.clone();
        for (old, new) in [(&good, &bad), (&bad, &good)] {
            let record = record("MODIFY", Some(old.clone()), Some(new.clone()));
            assert!(matches!(extract(&record), Err(RecordError::BadNumber { .. })), "{broken}");
        }
    }
    // A removed limit's counter is judged too.
    let mut old = image(RF, &[("rpm", 1)]);
    old["b_zzz_tc"] = json!({"N": "x"});
    let record = record("MODIFY", Some(old), Some(image(RF, &[("rpm", 2)])));
    let message = extract(&record).unwrap_err().to_string();
    assert_eq!(
        message,
        "counter of limit \"zzz\" in OldImage is not an integer in range: the number \"x\""
    );
}

#[test]
fn a_counter_that_an_image_has_twice_spoils_the_record() {
    let text = record("INSERT", None, Some(image(RF, &[("rpm", 5)]))).to_string();
    let twice = text.replace("\"b_rpm_tc\":", "\"b_rpm_tc\":{\"N\":\"5\"},\"b_rpm_tc\":");
    let error = extract_deltas(&StreamRecord::from_json(&twice).unwrap()).unwrap_err();
    assert!(matches!(error, RecordError::Repeated { .. }), "{error}");
}

#[test]
fn an_error_quotes_no_more_than_it_needs() {
    let name = "x".repeat(60_000);
    let error = extract(&record("INSERT", None, Some(image(RF, &[(&name, 5)])))).unwrap_err();
    assert!(error.to_string().len() < 300, "{error}");
}

#[test]
fn illegal_names_of_other_items_are_not_judged() {
    let mut record = record("INSERT", None, Some(json!({"parent_id": {"S": "x"}})));
    record["dynamodb"]["Keys"] = json!({"PK": {"S": "ENTITY#a#b"}, "SK": {"S": "#META"}});
    assert_eq!(named(&record), []);
    record["dynamodb"]["Keys"]["SK"]["S"] = json!("#BUCKET#gpt-4");
    assert!(extract(&record).is_err());
}

#[test]
fn a_position_is_needed_only_for_what_counts() {
    let mut record = record("INSERT", None, Some(image(RF, &[("rpm", 1)])));
    record["dynamodb"]["SequenceNumber"] = json!("12x");
    assert!(matches!(extract(&record), Err(RecordError::BadSequenceNumber(_))));
    record["dynamodb"].as_object_mut().unwrap().remove("SequenceNumber");
    assert!(matches!(extract(&record), Err(RecordError::NoSequenceNumber)));
    record["dynamodb"]["NewImage"] = image(RF, &[("rpm", 0)]);
    assert_eq!(named(&record), []);
}

#[test]
fn limits_may_be_called_like_other_attributes() {
    let names =
        [("events", 1), ("req-min", 2), ("rpm.v2", 3), ("tc", 4), ("ttl", 5), ("window", 6)];
    let new = image(RF, &names);
    let expected: Vec<_> = names.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
    assert_eq!(named(&record("INSERT", None, Some(new))), expected);
}

#[test]
fn both_ways_into_an_image_agree() {
    let old = image(RF, &[("gone", 7), ("rpm", 1_000)]);
    let modify = record("MODIFY", Some(old), Some(image(RF, &[("rpm", 900), ("tpm", 4)])));
    let typed: EventRecord = serde_json::from_value(modify.clone()).unwrap();
    let text = modify.to_string();
    let parsed = StreamRecord::from_json(&text).unwrap();
    assert_eq!(parsed.change.new, Some(Image::from_item(&typed.change.new_image)));
    assert_eq!(parsed.change.old, Some(Image::from_item(&typed.change.old_image)));
}

proptest! {
    /// The sum over a history is the growth of the counter, whatever comes in between.
    #[test]
    fn deltas_sum_to_the_growth(counts in proptest::collection::vec(-1_000_000..1_000_000_i64, 1..30)) {
        let mut sum = 0;
        for (i, &count) in counts.iter().enumerate() {
            let new = Some(image(RF, &[("rpm", count)]));
            let record = match i.checked_sub(1) {
                None => record("INSERT", None, new),
                Some(before) => record("MODIFY", Some(image(RF, &[("rpm", counts[before])])), new),
            };
            sum += named(&record).iter().map(|(_, n)| n).sum::<i64>();
        }
        prop_assert_eq!(sum, counts[counts.len() - 1]);
    }
}
