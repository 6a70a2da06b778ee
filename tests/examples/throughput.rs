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

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
    ScalarAttributeType,
};
use aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint;
use sluicegate::{Cascade, DynamoStore, Limiter, OnUnavailable};
use sluicegate_local::{EmbeddedEngine, Storage, client};

use self::sender::{Bare, Sender, TABLE, limits};

mod sender;

const SLICE: Duration = Duration::from_millis(1_000);
const SLICES: usize = 7;

/// Counts what is sent, repetitions included.
#[derive(Debug, Clone, Default)]
struct Requests(Arc<AtomicUsize>);

#[dyn_dispatch_hint]
impl Intercept for Requests {
    fn name(&self) -> &'static str {
        "Requests"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
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
    let requests = Requests::default();
    let config = client::dynamodb_config(&engine.endpoint_url()).interceptor(requests.clone());
    let sdk = Client::from_conf(config.build());
    create_table(&sdk).await;
    let limiter = Limiter::new(DynamoStore::new(sdk.clone(), TABLE))
        .cascade(Cascade::No)
        .deadline(Duration::from_secs(30))
        .on_unavailable(OnUnavailable::Deny);
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

    println!("| tasks | entities | | acquires/s | ratio | requests each | p50 ms | p99 ms |");
    println!("|--:|--:|---|--:|--:|--:|--:|--:|");
    for entities in [1, most.len()] {
        let bare = bare(entities > 1);
        let entities = Arc::new(most[..entities].to_vec());
        for tasks in [1, 16, 64] {
            let mut rates = [Vec::new(), Vec::new()];
            let mut times = [Vec::new(), Vec::new()];
            let mut sent = [0, 0];
            for n in 0..=SLICES {
                for (which, sender) in [&bare, &ours].into_iter().enumerate() {
                    let before = requests.0.load(Ordering::Relaxed);
                    let (rate, took) = slice(sender, tasks, &entities).await;
                    // The first slice warms up.
                    if n > 0 {
                        rates[which].push(rate);
                        times[which].extend(took);
                        sent[which] += requests.0.load(Ordering::Relaxed) - before;
                    }
                }
            }
            let [bare_rate, our_rate] = rates.map(median);
            for (name, rate, which) in [("bare SDK", bare_rate, 0), ("sluicegate", our_rate, 1)] {
                let took = &mut times[which];
                let each = sent[which] as f64 / took.len() as f64;
                let (p50, p99) = (percentile(took, 0.5), percentile(took, 0.99));
                let (ratio, count) = (rate / bare_rate, entities.len());
                println!(
                    "| {tasks} | {count} | {name} | {rate:.0} | {ratio:.2} | {each:.3} | {p50:.2} | {p99:.2} |"
                );
            }
        }
    }
    engine.stop().await.unwrap();
}
