//! Shared parts of the suites.

use std::time::Duration;

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use sluicegate_processor::{Outcome, Processor, Settings};
use sluicegate_testkit::history::{History, Usage, Usages};
use sluicegate_testkit::{EngineKind, RunningEngine};
use tokio::time::Instant;

pub(crate) use sluicegate_testkit::on_every_engine;

pub(crate) type Records = Vec<Box<RawValue>>;

/// The records of a history: `embedded`, or as the environment says, on the embedded engine; `other`
/// where an engine takes milliseconds for a write.
pub(crate) fn records_for(kind: &EngineKind, embedded: usize, other: usize) -> usize {
    if *kind != EngineKind::Embedded {
        return other;
    }
    std::env::var("SLUICEGATE_TEST_RECORDS").map_or(embedded, |text| text.parse().unwrap())
}

pub(crate) fn processor(engine: &RunningEngine, table: &str) -> Processor {
    Processor::new(engine.client().clone(), Settings::new(table))
}

/// Delivers one batch and expects it to be done.
pub(crate) async fn deliver(processor: &Processor, records: &[Box<RawValue>]) -> Outcome {
    let outcome = processor.handle(records, soon(60)).await;
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.response, Ok(DynamoDbEventResponse::default()));
    outcome
}

pub(crate) fn soon(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

/// An acquire of `milli` from limit `rpm`, the `n`th of its bucket, all within one hour.
pub(crate) fn acquire(entity: &str, sequence: u64, before: i64, milli: i64) -> Box<RawValue> {
    acquire_of("2026-01-28T00:00:00.000", entity, sequence, before, milli)
}

pub(crate) fn acquire_of(
    stream: &str,
    entity: &str,
    sequence: u64,
    before: i64,
    milli: i64,
) -> Box<RawValue> {
    let rf = 1_769_608_800_000_i64;
    let image = |tc: i64| json!({"rf": {"N": rf.to_string()}, "b_rpm_tc": {"N": tc.to_string()}});
    let arn = format!("arn:aws:dynamodb:us-east-1:000000000000:table/t/stream/{stream}");
    let record = json!({
        "eventName": "MODIFY", "eventSourceARN": arn,
        "dynamodb": {
            "ApproximateCreationDateTime": rf / 1_000,
            "Keys": {"PK": {"S": format!("ENTITY#{entity}")}, "SK": {"S": "#BUCKET#gpt-4"}},
            "SequenceNumber": (300_000_000_000_000_000_000_u128 + u128::from(sequence)).to_string(),
            "OldImage": image(before), "NewImage": image(before + milli),
        },
    });
    to_raw_value(&record).unwrap()
}

/// Sums of all windows of one kind, by entity, resource and limit.
pub(crate) fn totals(
    usages: &Usages,
    kind: &str,
) -> std::collections::BTreeMap<(String, String, String), i128> {
    let mut totals = std::collections::BTreeMap::new();
    for ((entity, resource, _, _), usage) in usages.iter().filter(|(id, _)| id.2 == kind) {
        for (limit, milli) in &usage.consumed_milli {
            let id = (entity.clone(), resource.clone(), limit.clone());
            *totals.entry(id).or_insert(0) += milli;
        }
    }
    totals
}

/// Compares with the history and names the first window that differs.
pub(crate) fn assert_exact(found: &Usages, history: &History, what: &str) {
    for (id, expected) in &history.windows {
        assert_eq!(found.get(id), Some(expected), "{what}: {id:?}");
    }
    assert_eq!(found.len(), history.windows.len(), "{what}: windows that nothing belongs to");
    for kind in ["hour", "day"] {
        assert_eq!(totals(found, kind), history.growth, "{what}: sum of the {kind} windows");
    }
}

/// The one hour window of an entity.
pub(crate) fn hour_of<'a>(usages: &'a Usages, entity: &str) -> Option<&'a Usage> {
    usages.iter().find(|(id, _)| id.0 == entity && id.2 == "hour").map(|(_, usage)| usage)
}

/// Acquires of one bucket, each from a limit of its own, `l0` and so on: a window takes them in
/// updates of 200 limits.
pub(crate) fn acquires_of_limits(entity: &str, limits: u64) -> Records {
    let of = |n| {
        let text = acquire(entity, n, 0, 1_000).get().replace("b_rpm_tc", &format!("b_l{n}_tc"));
        RawValue::from_string(text).unwrap()
    };
    (0..limits).map(of).collect()
}

pub(crate) fn contains(body: &[u8], needle: &[u8]) -> bool {
    body.windows(needle.len()).any(|window| window == needle)
}
