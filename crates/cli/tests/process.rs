//! `sluicegate process` as a script and a person see it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

use std::process::{Output, Stdio};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, StreamSpecification};
use sluicegate::dynamo::{DynamoTable, create_table};
use sluicegate::{CompositeStore, Limit, Limiter, OnUnavailable};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{RunningEngine, engines_under_test};
use tokio::process::Command;

fn process(engine: &RunningEngine, table: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command
        .args(["process", "--table", table])
        .args(args)
        .env_clear()
        .env("AWS_ENDPOINT_URL", engine.endpoint_url())
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn acquire(engine: &RunningEngine, table: &str, times: u32) {
    let limiter =
        Limiter::builder(CompositeStore::with_table(DynamoTable::new(engine.client(), table)))
            .deadline(Duration::from_secs(60))
            .on_unavailable(OnUnavailable::Deny)
            .build();
    for _ in 0..times {
        let limits = [Limit::per_day("tpd", 1_000_000)];
        let request = limiter.acquire("user-1", "model").consume("tpd", 10).limits(limits);
        request.no_cascade().await.unwrap();
    }
}

/// Tokens in the day windows.
async fn counted(engine: &RunningEngine, table: &str) -> i128 {
    let usages = read_usages(engine.client(), table).await;
    let days = usages.iter().filter(|((_, _, kind, _), _)| *kind == "day");
    days.map(|(_, usage)| usage.consumed_milli["tpd"]).sum::<i128>() / 1_000
}

fn said(output: Output, code: i32) -> String {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    stderr
}

async fn on_every_engine(suite: impl AsyncFn(&RunningEngine, &str)) {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = engine.create_table().await;
        suite(&engine, &table).await;
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn once_counts_what_is_there_and_a_checkpoint_only_saves_time() {
    on_every_engine(async |engine, table| {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = folder.path().join("checkpoint");
        let path = checkpoint.to_str().unwrap();
        let once = async |args: &[&str]| {
            let mut command = process(engine, table, &[&["--once"], args].concat());
            said(command.output().await.unwrap(), 0)
        };
        acquire(engine, table, 3).await;
        let line = once(&["--checkpoint", path]).await;
        assert!(line.contains("2 window updates, 0 counted before"), "{line}");
        assert_eq!(counted(engine, table).await, 30);

        acquire(engine, table, 2).await;
        let line = once(&["--checkpoint", path]).await;
        assert!(line.contains("2 window updates, 0 counted before"), "{line}");
        assert_eq!(counted(engine, table).await, 50);

        for windows in ["hour,month", "day"] {
            let args = ["--once", "--checkpoint", path, "--windows", windows];
            let line = said(process(engine, table, &args).output().await.unwrap(), 2);
            assert!(line.contains("of a process with `--windows hour,day`"), "{line}");
        }

        let line = once(&[]).await;
        assert!(line.contains("0 window updates, 5 counted before"), "{line}");
        std::fs::write(&checkpoint, "notes").unwrap();
        let mut command = process(engine, table, &["--once", "--checkpoint", path]);
        let line = said(command.output().await.unwrap(), 2);
        assert!(line.contains("is no checkpoint"), "{line}");
        assert_eq!(std::fs::read_to_string(&checkpoint).unwrap(), "notes", "it is not overwritten");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_the_stream_until_it_is_stopped() {
    on_every_engine(async |engine, table| {
        let child = process(engine, table, &[]).spawn().unwrap();
        acquire(engine, table, 4).await;
        let wait = async {
            while counted(engine, table).await != 40 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap();
        let id = child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
        let lines = said(child.wait_with_output().await.unwrap(), 0);
        assert!(lines.starts_with("following the stream"), "{lines}");
        assert!(lines.contains("0 quarantined"), "{lines}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_the_stream_that_it_follows_is_switched_off() {
    it_ends_after("is switched off", async |client, table| {
        let off = StreamSpecification::builder().stream_enabled(false).build().unwrap();
        let update = client.update_table().table_name(table).stream_specification(off);
        update.send().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_the_stream_that_it_follows_is_replaced() {
    it_ends_after("has a new stream", async |client, table| {
        client.delete_table().table_name(table).send().await.unwrap();
        create_table(client, table).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_the_table_is_deleted() {
    it_ends_after("was deleted", async |client, table| {
        client.delete_table().table_name(table).send().await.unwrap();
    })
    .await;
}

async fn it_ends_after(why: &str, end: impl AsyncFn(&Client, &str)) {
    on_every_engine(async |engine, table| {
        let mut child = process(engine, table, &[]).spawn().unwrap();
        acquire(engine, table, 1).await;
        // It follows the stream that is about to end.
        while counted(engine, table).await == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        end(engine.client(), table).await;
        let ended = tokio::time::timeout(Duration::from_secs(180), child.wait()).await;
        assert!(ended.is_ok(), "it follows a stream that has ended");
        let lines = said(child.wait_with_output().await.unwrap(), 5);
        assert!(lines.lines().last().unwrap().contains(why), "{lines}");
        // The shard and the list of shards, each once.
        assert!(lines.matches("asking again").count() <= 2, "{lines}");
        if why == "was deleted" {
            // The end of the engine expects the table.
            create_table(engine.client(), table).await.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_counted_is_told_and_the_rest_is_counted() {
    on_every_engine(async |engine, table| {
        let broken = [("PK", "ENTITY#odd"), ("SK", "#BUCKET#model"), ("b_tpd_tc", "many")];
        let mut put = engine.client().put_item().table_name(table);
        for (name, value) in broken {
            put = put.item(name, AttributeValue::S(value.into()));
        }
        put.send().await.unwrap();
        acquire(engine, table, 1).await;
        let lines = said(process(engine, table, &["--once"]).output().await.unwrap(), 1);
        assert!(lines.contains("quarantined ") && lines.contains("1 quarantined"), "{lines}");
        assert_eq!(counted(engine, table).await, 10);
    })
    .await;
}

#[tokio::test]
async fn a_window_that_there_is_not_is_bad_input() {
    let [kind, ..] = &engines_under_test()[..] else { panic!("no engine") };
    let engine = RunningEngine::start(kind.clone()).await;
    let output = process(&engine, "any", &["--windows", "weeks"]).output().await.unwrap();
    assert!(said(output, 2).contains("write minute, hour, day, week"));
    engine.stop().await;
}

#[tokio::test]
async fn a_missing_table_is_one_line() {
    let [kind, ..] = &engines_under_test()[..] else { panic!("no engine") };
    let engine = RunningEngine::start(kind.clone()).await;
    let output = process(&engine, "sluicegate-nowhere", &["--once"]).output().await.unwrap();
    let line = said(output, 5);
    assert!(line.lines().count() == 1 && line.contains("sluicegate table create"), "{line}");
    engine.stop().await;
}
