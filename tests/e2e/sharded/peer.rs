//! zae-limiter 0.17 itself: four processes that acquire, and its aggregator, on one table with our
//! processor.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use futures_util::future::join_all;
use serde_json::Value;
use serde_json::value::RawValue;
use sluicegate_local::InProcess;
use sluicegate_local::poller::{BatchSize, Handler, Poller, Settings};
use sluicegate_processor::HandleError;
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{AtLeastOnce, EngineKind, RunningEngine};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use super::{Granted, processor, sums};
use crate::support::Records;

const TABLE: &str = "zae-limiter-0-17";
const PRODUCERS: usize = 4;

fn command(engine: &RunningEngine, task: &str) -> Command {
    let mut command = Command::new(sluicegate_testkit::engine("zae-limiter-sharded/bin/python"));
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../xtask/interop/sharded.py");
    command.arg(script).args([task, TABLE, engine.endpoint_url()]);
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    command
}

/// Runs a task of the script to its end; returns the last line that it prints.
async fn run(command: &mut Command) -> Value {
    let advice = "install it with: cargo xtask engines zae-limiter-sharded";
    let output = command.output().await.expect(advice);
    assert!(output.status.success(), "the script ended with {}; {advice}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Its aggregator, a process that counts one line of records at a time.
struct Aggregator {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Aggregator {
    fn start(engine: &RunningEngine) -> Self {
        let mut child = command(engine, "aggregate").stdin(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, input, output }
    }

    async fn count(&mut self, records: &[&RawValue]) {
        let mut line = serde_json::to_vec(records).unwrap();
        line.push(b'\n');
        self.input.write_all(&line).await.unwrap();
        let answer = self.output.next_line().await.unwrap().expect("it counted the batch");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["errors"], serde_json::json!([]));
    }
}

/// Passes batches to its aggregator and to our processor, as two event source mappings do, and
/// keeps each record once.
struct Both {
    ours: InProcess,
    theirs: Mutex<Aggregator>,
    kept: Mutex<BTreeMap<String, Box<RawValue>>>,
    deliveries: AtomicUsize,
}

impl Handler for &Both {
    type Error = HandleError;

    async fn handle(
        &self,
        records: &[Box<RawValue>],
    ) -> Result<DynamoDbEventResponse, Self::Error> {
        // The two filters.
        let (mut of_shards, mut changed) = (Records::new(), Vec::new());
        for record in records {
            let value: Value = serde_json::from_str(record.get()).unwrap();
            if value["dynamodb"]["Keys"]["SK"]["S"] == "#STATE" {
                let position = value["dynamodb"]["SequenceNumber"].as_str().unwrap();
                let position = format!("{position:0>40}");
                self.kept.lock().await.insert(position, record.clone());
                of_shards.push(record.clone());
                changed.extend((value["eventName"] == "MODIFY").then_some(&**record));
            }
        }
        self.deliveries.fetch_add(of_shards.len(), Ordering::Relaxed);
        if !changed.is_empty() {
            self.theirs.lock().await.count(&changed).await;
        }
        self.ours.handle(&of_shards).await
    }
}

/// Its snapshots, in millitokens: of the windows that it calls hourly, and of those that it calls
/// daily.
async fn snapshots(engine: &RunningEngine, kind: &str) -> Granted {
    let scan = engine.client().scan().table_name(TABLE).consistent_read(true);
    let pages = scan.into_paginator().items().send();
    let items = pages.collect::<Result<Vec<_>, _>>().await.unwrap();
    let mut sums = Granted::new();
    for item in
        items.iter().filter(|item| item.get("window").is_some_and(|w| *w.as_s().unwrap() == kind))
    {
        let (namespace, _) = item["PK"].as_s().unwrap().split_once('/').unwrap();
        let text = |name: &str| item[name].as_s().unwrap();
        for limit in ["rpm", "tpm"] {
            let Some(tokens) = item.get(limit) else { continue };
            let key = format!("{namespace}/{} {} {limit}", text("entity_id"), text("resource"));
            let tokens: i128 = tokens.as_n().unwrap().parse().unwrap();
            *sums.entry(key).or_default() += tokens * 1_000;
        }
    }
    sums
}

/// `SLUICEGATE_RECORD=FOLDER` writes the recording for the tests beside this.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs zae-limiter 0.17: cargo xtask engines zae-limiter-sharded"]
async fn grants_of_four_processes_are_the_windows_beside_their_aggregator() {
    let requests = std::env::var("SLUICEGATE_TEST_REQUESTS").unwrap_or_else(|_| "30".to_owned());
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let ids = run(&mut command(&engine, "table")).await;
    let both = Both {
        ours: InProcess::new(processor(&engine, TABLE), Duration::from_secs(60)),
        theirs: Mutex::new(Aggregator::start(&engine)),
        kept: Mutex::default(),
        deliveries: AtomicUsize::new(0),
    };
    let settings = Settings { batch_size: BatchSize::new(50).unwrap(), ..Settings::default() };
    let delivery = AtLeastOnce::seeded(&both, 17);
    let mut poller = Poller::new(engine.stream(TABLE).await, delivery, settings);

    let producers =
        (0..PRODUCERS).map(async |_| run(command(&engine, "produce").arg(&requests)).await);
    let mut producers = std::pin::pin!(join_all(producers));
    let produced = loop {
        tokio::select! {
            produced = &mut producers => break produced,
            () = tokio::time::sleep(Duration::from_millis(100)) => {
                poller.drain().await.unwrap();
            }
        }
    };
    poller.drain().await.unwrap();

    let (mut granted, mut refused) = (Granted::new(), 0);
    for result in &produced {
        assert_eq!(result["failed"], serde_json::json!({}));
        refused += result["refused"].as_u64().unwrap();
        for (key, tokens) in result["granted"].as_object().unwrap() {
            let (namespace, rest) = key.split_once(' ').unwrap();
            let key = format!("{}/{rest}", ids[namespace].as_str().unwrap());
            *granted.entry(key).or_default() += i128::from(tokens.as_i64().unwrap()) * 1_000;
        }
    }
    let found = read_usages(engine.client(), TABLE).await;
    let (hours, days) = (sums(&found, "hour"), sums(&found, "day"));
    let (hourly, daily) = (snapshots(&engine, "hourly").await, snapshots(&engine, "daily").await);
    let (kept, deliveries) = (both.kept.lock().await, both.deliveries.load(Ordering::Relaxed));
    println!("{} records in {deliveries} deliveries, {refused} refused; millitokens:", kept.len());
    for (key, milli) in &granted {
        let of = |sums: &Granted| sums.get(key).copied().unwrap_or_default();
        println!(
            "{key}: granted {milli}, ours {} / {}, its aggregator {} / {}",
            of(&hours),
            of(&days),
            of(&hourly),
            of(&daily)
        );
    }
    if let Ok(folder) = std::env::var("SLUICEGATE_RECORD") {
        let file = |name: &str| PathBuf::from(&folder).join(name);
        let records = kept.values().map(|record| format!("{}\n", record.get()));
        fs::write(file("zae-limiter-0.17.jsonl"), records.collect::<String>()).unwrap();
        let granted = serde_json::to_string(&granted).unwrap() + "\n";
        fs::write(file("zae-limiter-0.17.granted.json"), granted).unwrap();
    }
    assert_eq!(hours, granted);
    assert_eq!(days, granted);
}
