//! The event and the two ways through it that the benchmarks compare.

use serde_json::{Value, json};
use sluicegate_core::{Batch, Layouts, StreamEvent, WindowKinds, WindowUpdate, group_by_window};

/// A thousand records of fifty buckets, as Lambda spells them: images with every attribute that the
/// limiter writes.
pub(crate) fn event(limits: usize) -> Vec<u8> {
    let records: Vec<Value> = (0..1_000).map(|n| record(n, limits)).collect();
    json!({"Records": records}).to_string().into_bytes()
}

fn record(n: i64, limits: usize) -> Value {
    let (entity, resource) = (format!("key-7f3a9c-{:04}", n % 50), "gpt-4o-mini");
    let rf = 1_769_608_800_000 + n * 40;
    let image = |round: i64| {
        let mut image = json!({
            "PK": {"S": format!("ENTITY#{entity}")}, "SK": {"S": format!("#BUCKET#{resource}")},
            "entity_id": {"S": entity}, "resource": {"S": resource}, "rf": {"N": rf.to_string()},
            "ttl": {"N": "1769612400"}, "pv": {"S": "k3v9x2ab"}, "ep": {"N": "1769600000000"},
            "GSI2PK": {"S": format!("RESOURCE#{resource}")}, "GSI2SK": {"S": format!("BUCKET#{entity}")},
            "lr": {"S": "q8w7e6r5"}, "lr1": {"S": "a1s2d3f4"}, "lr2": {"S": "z9x8c7v6"}, "lr3": {"S": "m5n4b3v2"},
        });
        for limit in 0..limits {
            for (field, value) in [
                ("tk", 99_000_000 - round * 17),
                ("cp", 100_000_000),
                ("bx", 200_000_000),
                ("ra", 100_000_000),
                ("rp", 60_000),
                ("tc", 1_000_000 + round * 1_240),
            ] {
                image[format!("b_limit{limit}_{field}")] = json!({"N": value.to_string()});
            }
        }
        image
    };
    json!({
        "eventID": format!("{n:032x}"), "eventName": "MODIFY", "eventVersion": "1.1",
        "eventSource": "aws:dynamodb", "awsRegion": "eu-west-1",
        "eventSourceARN": "arn:aws:dynamodb:eu-west-1:123456789012:table/sluicegate-limits/stream/2026-01-01T00:00:00.000",
        "dynamodb": {
            "ApproximateCreationDateTime": rf / 1_000,
            "Keys": {"PK": {"S": format!("ENTITY#{entity}")}, "SK": {"S": format!("#BUCKET#{resource}")}},
            "SequenceNumber": (300_000_000_012_345_678_901_i128 + i128::from(n) * 997).to_string(),
            "SizeBytes": 1_400, "StreamViewType": "NEW_AND_OLD_IMAGES",
            "OldImage": image(n), "NewImage": image(n + 1),
        },
    })
}

/// The work of the Lambda function before its first write, with every validation.
pub(crate) fn to_updates(event: &[u8]) -> Vec<WindowUpdate> {
    let event: StreamEvent = serde_json::from_slice(event).expect("an event");
    let batch = Batch::read(&event.records, Layouts::Composite);
    let grouped = group_by_window(batch.countable, &WindowKinds::default());
    grouped.groups.iter().filter_map(|group| group.next_update(None)).collect()
}

/// The yardstick: the same bytes as a tree, and nothing more.
pub(crate) fn to_value(event: &[u8]) -> Value {
    serde_json::from_slice(event).expect("JSON")
}
