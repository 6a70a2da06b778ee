//! Acquires beside the bare SDK sending the same UpdateItem to the same engine, in one run.
//!
//! `cargo run --profile bench -p sluicegate-tests --example throughput`. Slices of both alternate, so
//! that whatever else the machine does meanwhile falls on both; the medians of the slices are
//! compared. The engine is the embedded one in this process, over HTTP, without a stream: with one,
//! every write would scan the records of all writes before it.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a tool by hand"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
    ReturnConsumedCapacity, ReturnValue, ReturnValuesOnConditionCheckFailure, ScalarAttributeType,
};
use sluicegate::{Cascade, DynamoStore, Limit, Limiter};
use sluicegate_local::{EmbeddedEngine, Storage, client};

const TABLE: &str = "sluicegate-bench";
const SLICE: Duration = Duration::from_millis(1_000);
const SLICES: usize = 7;

/// Who sends the writes.
#[derive(Clone)]
enum Sender {
    Ours(Limiter<DynamoStore>),
    Bare(Arc<Bare>),
}

/// The write of a warm acquire, prepared once.
struct Bare {
    client: Client,
    update: &'static str,
    condition: &'static str,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

/// What is written when somebody claimed a moment ago: one hot bucket.
const RETRY_UPDATE: &str = "SET #n1 = if_not_exists(#n0, :v0), #n0 = if_not_exists(#n2, :v0), \
    #n2 = if_not_exists(#n3, :v0), #n3 = :v1 ADD #n4 :v2, #n5 :v3, #n8 :v2, #n9 :v3";
const RETRY_CONDITION: &str = "NOT #n3 = :v4 AND NOT #n2 = :v4 AND NOT #n0 = :v4 AND NOT #n1 = :v4 \
    AND #n6 >= :v5 AND #n7 = :v6 AND #n4 <= :v7 AND #n4 >= :v8 AND #n8 <= :v7 AND #n8 >= :v8";

/// What is written with a claim: ten thousand buckets, each seldom.
const NORMAL_UPDATE: &str = "SET #n1 = if_not_exists(#n0, :v0), #n0 = if_not_exists(#n2, :v0), \
    #n2 = if_not_exists(#n3, :v0), #n3 = :v1, #n6 = :v9, #n10 = :v10 \
    ADD #n4 :v2, #n5 :v3, #n8 :v2, #n9 :v3";
const NORMAL_CONDITION: &str = "NOT #n3 = :v4 AND NOT #n2 = :v4 AND NOT #n0 = :v4 AND NOT #n1 = :v4 \
    AND #n6 <= :v9 AND #n7 = :v6 AND #n4 >= :v8 AND #n4 <= :v7 AND #n8 >= :v8 AND #n8 <= :v7";

fn limits() -> [Limit; 2] {
    ["rpm", "tpm"].map(|name| Limit::per_minute(name, 1_000_000_000_000))
}

impl Bare {
    fn new(client: Client, hash: &str, claims: bool) -> Self {
        let names = [
            "lr2", "lr3", "lr1", "lr", "b_rpm_tk", "b_rpm_tc", "rf", "pv", "b_tpm_tk", "b_tpm_tc",
            "ttl",
        ];
        let number = |n: i64| AttributeValue::N(n.to_string());
        let values = [
            AttributeValue::S("-".into()),
            AttributeValue::S("AAAAAAAAAA".into()),
            number(-1_000),
            number(1_000),
            AttributeValue::S("BBBBBBBBBB".into()),
            number(0),
            AttributeValue::S(hash.to_owned()),
            number(1_000_000_000_000_000_000),
            number(1_000),
            // Ahead of every clock, so that the condition holds whoever wrote last.
            number(253_402_300_799_999),
            number(253_402_300_799),
        ];
        let used = |n: usize| if claims { n != 5 } else { n < 9 };
        let (update, condition) = if claims {
            (NORMAL_UPDATE, NORMAL_CONDITION)
        } else {
            (RETRY_UPDATE, RETRY_CONDITION)
        };
        Self {
            client,
            update,
            condition,
            names: names
                .iter()
                .enumerate()
                .filter(|(n, _)| claims || *n < 10)
                .map(|(n, name)| (format!("#n{n}"), (*name).into()))
                .collect(),
            values: values
                .into_iter()
                .enumerate()
                .filter(|(n, _)| used(*n))
                .map(|(n, value)| (format!(":v{n}"), value))
                .collect(),
        }
    }

    async fn send(&self, entity: &str) {
        let s = |text: String| AttributeValue::S(text);
        self.client
            .update_item()
            .table_name(TABLE)
            .key("PK", s(format!("ENTITY#{entity}")))
            .key("SK", s("#BUCKET#bare".into()))
            .update_expression(self.update)
            .condition_expression(self.condition)
            .set_expression_attribute_names(Some(self.names.clone()))
            .set_expression_attribute_values(Some(self.values.clone()))
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .unwrap();
    }
}

impl Sender {
    async fn send(&self, entity: &str) {
        match self {
            Self::Ours(limiter) => {
                let request = limiter.acquire(entity, "gpt-4").consume("rpm", 1).consume("tpm", 1);
                request.limits(limits()).await.unwrap();
            }
            Self::Bare(bare) => bare.send(entity).await,
        }
    }
}

/// One slice: how many writes a second, and how long each took.
async fn slice(sender: &Sender, tasks: usize, entities: &Arc<Vec<String>>) -> (f64, Vec<Duration>) {
    let next = Arc::new(AtomicUsize::new(fastrand::usize(..entities.len())));
    let start = Instant::now();
    let mut running = Vec::new();
    for _ in 0..tasks {
        let (sender, entities, next) = (sender.clone(), entities.clone(), next.clone());
        running.push(tokio::spawn(async move {
            let mut took = Vec::new();
            while start.elapsed() < SLICE {
                let entity = &entities[next.fetch_add(1, Ordering::Relaxed) % entities.len()];
                let sent = Instant::now();
                sender.send(entity).await;
                took.push(sent.elapsed());
            }
            took
        }));
    }
    let mut all = Vec::new();
    for task in running {
        all.extend(task.await.unwrap());
    }
    let rate = all.len() as f64 / start.elapsed().as_secs_f64();
    (rate, all)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn percentile(took: &mut [Duration], share: f64) -> f64 {
    took.sort_unstable();
    let index = ((took.len() - 1) as f64 * share).round() as usize;
    took[index].as_secs_f64() * 1_000.0
}

async fn create_table(client: &Client) {
    let key = |name, kind| {
        KeySchemaElement::builder().attribute_name(name).key_type(kind).build().unwrap()
    };
    let attribute = |name| {
        AttributeDefinition::builder()
            .attribute_name(name)
            .attribute_type(ScalarAttributeType::S)
            .build()
            .unwrap()
    };
    client
        .create_table()
        .table_name(TABLE)
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(key("PK", KeyType::Hash))
        .key_schema(key("SK", KeyType::Range))
        .attribute_definitions(attribute("PK"))
        .attribute_definitions(attribute("SK"))
        .send()
        .await
        .unwrap();
}

#[tokio::main]
async fn main() {
    let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
    let sdk = client::dynamodb(&engine.endpoint_url());
    create_table(&sdk).await;
    let limiter = Limiter::new(DynamoStore::new(sdk.clone(), TABLE))
        .cascade(Cascade::No)
        .deadline(Duration::from_secs(30));
    let most: Vec<String> = (0..10_000).map(|n| format!("user-{n}")).collect();
    println!("creating {} buckets", most.len());
    let ours = Sender::Ours(limiter.clone());
    for entity in &most {
        ours.send(entity).await;
        // The bare SDK has buckets of its own: its times are none.
        let request = limiter.acquire(entity, "bare").consume("rpm", 1).consume("tpm", 1);
        request.limits(limits()).await.unwrap();
    }
    let item = sdk.get_item().table_name(TABLE);
    let item = item.key("PK", AttributeValue::S("ENTITY#user-0".into()));
    let item = item.key("SK", AttributeValue::S("#BUCKET#bare".into())).send().await.unwrap();
    let hash = item.item().unwrap()["pv"].as_s().unwrap().clone();
    let bare = |claims| Sender::Bare(Arc::new(Bare::new(sdk.clone(), &hash, claims)));

    println!("| tasks | entities | | acquires/s | ratio | p50 ms | p99 ms |");
    println!("|--:|--:|---|--:|--:|--:|--:|");
    for entities in [1, most.len()] {
        let bare = bare(entities > 1);
        let entities = Arc::new(most[..entities].to_vec());
        for tasks in [1, 16, 64] {
            let mut rates = [Vec::new(), Vec::new()];
            let mut times = [Vec::new(), Vec::new()];
            for n in 0..=SLICES {
                for (which, sender) in [&bare, &ours].into_iter().enumerate() {
                    let (rate, took) = slice(sender, tasks, &entities).await;
                    // The first slice warms up.
                    if n > 0 {
                        rates[which].push(rate);
                        times[which].extend(took);
                    }
                }
            }
            let [bare_rate, our_rate] = rates.map(median);
            for (name, rate, took) in [("bare SDK", bare_rate, 0), ("sluicegate", our_rate, 1)] {
                let took = &mut times[took];
                let (p50, p99) = (percentile(took, 0.5), percentile(took, 0.99));
                let (ratio, count) = (rate / bare_rate, entities.len());
                println!(
                    "| {tasks} | {count} | {name} | {rate:.0} | {ratio:.2} | {p50:.2} | {p99:.2} |"
                );
            }
        }
    }
    engine.stop().await.unwrap();
}
