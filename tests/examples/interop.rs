//! Runs another producer of the reference schema and this library on one bucket, at once.
//!
//! `interop COMMAND...`: the command gets the table, the endpoint and the number of requests after
//! its own arguments, and prints its grants as JSON on its last line. `cargo xtask interop`
//! installs zae-limiter and runs this. Both take one request and 100 tokens each time; in the end
//! the bucket's counters and the usage windows must equal the grants of both.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a tool by hand")]

use std::process::Stdio;
use std::time::Duration;

use sluicegate::{AcquireError, DynamoStore, EntityId, Limit, Limiter, OnUnavailable, Resource};
use sluicegate_core::keys::ItemKey;
use sluicegate_local::InProcess;
use sluicegate_local::poller::{Poller, Settings as PollerSettings};
use sluicegate_processor::{Processor, Settings};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{EngineKind, RunningEngine};

const TABLE: &str = "interop-shared";
const REQUESTS: u32 = 300;

#[derive(Debug, Default)]
struct Counts {
    granted: i64,
    refused: i64,
}

async fn ours(limiter: Limiter) -> Counts {
    let limits = || [Limit::per_minute("rpm", 300), Limit::per_minute("tpm", 1_000_000)];
    let mut counts = Counts::default();
    let mut paths = std::collections::BTreeMap::<&str, u32>::new();
    for _ in 0..REQUESTS {
        let ask = limiter.acquire("user-shared", "gpt-4").consume("rpm", 1).consume("tpm", 100);
        match ask.limits(limits()).no_cascade().await {
            Ok(permit) => {
                counts.granted += 1;
                *paths.entry(permit.cost().path.unwrap().as_str()).or_default() += 1;
            }
            Err(AcquireError::LimitExceeded(_)) => counts.refused += 1,
            Err(error) => panic!("{error}"),
        }
        // About as fast as the other producer.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    println!("sluicegate: {counts:?}, by path {paths:?}");
    counts
}

async fn theirs(command: &[String], endpoint_url: &str) -> Counts {
    let mut child = tokio::process::Command::new(&command[0]);
    child.args(&command[1..]).args([TABLE, endpoint_url]).arg(REQUESTS.to_string());
    child.env("AWS_ACCESS_KEY_ID", "local").env("AWS_SECRET_ACCESS_KEY", "local");
    child.stderr(Stdio::inherit()).kill_on_drop(true);
    let output = child.output().await.unwrap();
    assert!(output.status.success(), "{command:?} ended with {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let count = |name: &str| last[name].as_i64().unwrap();
    let counts = Counts { granted: count("granted"), refused: count("refused") };
    println!("the other producer: {counts:?}");
    counts
}

#[tokio::main]
async fn main() {
    let command: Vec<String> = std::env::args().skip(1).collect();
    assert!(!command.is_empty(), "usage: interop COMMAND...");
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let client = engine.client();
    sluicegate::dynamo::create_table(client, TABLE).await.unwrap();
    let limiter = Limiter::builder(DynamoStore::new(client.clone(), TABLE))
        .deadline(std::time::Duration::from_secs(1))
        .on_unavailable(OnUnavailable::Deny)
        .build();
    let (ours, theirs) = tokio::join!(ours(limiter), theirs(&command, engine.endpoint_url()));

    let key =
        ItemKey::Bucket(EntityId::new("user-shared").unwrap(), Resource::new("gpt-4").unwrap());
    let s = |text: String| aws_sdk_dynamodb::types::AttributeValue::S(text);
    let item = client.get_item().table_name(TABLE).key("PK", s(key.pk())).key("SK", s(key.sk()));
    let item = item.consistent_read(true).send().await.unwrap().item.unwrap();
    let granted = ours.granted + theirs.granted;
    for (attribute, each) in [("b_rpm_tc", 1_000), ("b_tpm_tc", 100_000)] {
        let counted: i64 = item[attribute].as_n().unwrap().parse().unwrap();
        println!("{attribute} {counted}, granted {}", granted * each);
        assert_eq!(counted, granted * each, "{attribute}");
    }
    let processor = Processor::new(client.clone(), Settings::new(TABLE));
    let function = InProcess::new(processor, Duration::from_secs(60));
    let mut poller = Poller::new(engine.stream(TABLE).await, function, PollerSettings::default());
    poller.drain().await.unwrap();
    let usages = read_usages(client, TABLE).await;
    for kind in ["hour", "day"] {
        for (limit, each) in [("rpm", 1_000), ("tpm", 100_000)] {
            let windows = usages.iter().filter(|(id, _)| id.2 == kind);
            let sum: i128 = windows.map(|(_, usage)| usage.consumed_milli[limit]).sum();
            println!("{kind} windows of {limit}: {sum}");
            assert_eq!(sum, i128::from(granted * each), "{kind} windows of {limit}");
        }
    }
    println!("both agree: {granted} granted, {} refused", ours.refused + theirs.refused);
    engine.stop().await;
}
