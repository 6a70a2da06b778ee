//! The process dies in the middle of a batch, and the batch is delivered again.

use std::process::Stdio;

use serde_json::json;
use serde_json::value::to_raw_value;
use sluicegate_testkit::RunningEngine;
use sluicegate_testkit::history::{History, Shape};
use sluicegate_testkit::usage::read_quarantine;
use tokio::process::Command;

use crate::alerts::{assert_alerted, table_with_thresholds};
use crate::support::on_every_engine;

/// More writes than any batch has: the process survives.
const NEVER: u64 = u64::MAX;

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_after_any_write_loses_and_doubles_nothing() {
    // One batch: ten buckets within minutes, two kinds of windows, one record for quarantine.
    let shape = Shape { pause_ms: 10, ..Shape::new(11, 200) };
    let history = History::generate(&shape);
    let mut records = history.records.clone();
    let broken = json!({"eventName": "MODIFY", "dynamodb": {"SequenceNumber": "17",
        "Keys": {"PK": {"S": "ENTITY#x"}, "SK": {"S": "#BUCKET#y"}}, "NewImage": {"rf": {"N": "1"}}}});
    records.insert(50, to_raw_value(&broken).unwrap());
    let writes = u64::try_from(history.windows.len()).unwrap() + 1;
    assert!(writes >= 21, "{writes} writes");

    let folder = tempfile::tempdir().unwrap();
    let event = folder.path().join("event.json");
    std::fs::write(&event, json!({"Records": records}).to_string()).unwrap();
    on_every_engine(async |engine| {
        // Claims of thresholds are writes too.
        for after in 1.. {
            let table = table_with_thresholds(engine).await;
            if run(engine, &table, &event, after).await {
                assert!(after > writes, "aborts after write {after}");
                break;
            }
            assert!(
                run(engine, &table, &event, NEVER).await,
                "delivered again from the checkpoint"
            );
            let what = format!("aborted after write {after}");
            assert_alerted(engine, &table, &history, &what).await;
            assert_eq!(read_quarantine(engine.client(), &table).await.len(), 1);
        }
    })
    .await;
}

/// True if the process survived to the end.
async fn run(engine: &RunningEngine, table: &str, event: &std::path::Path, after: u64) -> bool {
    let status = Command::new(env!("CARGO_BIN_EXE_deliver"))
        .args([engine.endpoint_url(), table])
        .arg(event)
        .arg(after.to_string())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .unwrap();
    assert!(
        status.success() || status.code().is_none(),
        "aborted by a signal, not failed: {status}"
    );
    status.success()
}
