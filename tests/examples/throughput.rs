//! Compares acquires with the bare SDK sending the same UpdateItem to the same engine, in one run.
//!
//! `cargo run --profile bench -p sluicegate-tests --example throughput`. Slices of both alternate,
//! so that other load on the machine affects both; the medians of the slices are compared. The
//! engine is the embedded one in this process, over HTTP, without a stream. A run fails with a line
//! for each missed aim.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::neg_cmp_op_on_partial_ord,
    reason = "a tool by hand"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint;
use sluicegate::settings::Cascade;
use sluicegate::{DynamoStore, Limiter, OnUnavailable};
use sluicegate_local::{EmbeddedEngine, Storage, client};

use self::measured::{Aims, create_table, median, percentile};
use self::sender::{Bare, Sender, TABLE, limits};

mod measured;
mod sender;

const SLICE: Duration = Duration::from_millis(1_000);
const SLICES: usize = 7;

/// Counts the requests sent, repetitions included.
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

/// One slice of calls.
struct Slice {
    /// Calls a second.
    rate: f64,
    took: Vec<Duration>,
    write_units: f64,
    cpu_ticks: f64,
}

async fn slice(sender: &Sender, tasks: usize, entities: &Arc<Vec<String>>) -> Slice {
    let next = Arc::new(AtomicUsize::new(fastrand::usize(..entities.len())));
    let (start, ticks) = (Instant::now(), cpu_ticks());
    let mut running = Vec::new();
    for _ in 0..tasks {
        let (sender, entities, next) = (sender.clone(), entities.clone(), next.clone());
        running.push(tokio::spawn(async move {
            let (mut took, mut units) = (Vec::new(), 0.0);
            while start.elapsed() < SLICE {
                let entity = &entities[next.fetch_add(1, Ordering::Relaxed) % entities.len()];
                let sent = Instant::now();
                units += sender.send(entity).await;
                took.push(sent.elapsed());
            }
            (took, units)
        }));
    }
    let (mut all, mut write_units) = (Vec::new(), 0.0);
    for task in running {
        let (took, units) = task.await.unwrap();
        all.extend(took);
        write_units += units;
    }
    let rate = all.len() as f64 / start.elapsed().as_secs_f64();
    Slice { rate, took: all, write_units, cpu_ticks: cpu_ticks() - ticks }
}

/// Processor time of this process: other load on the machine is not part of it.
fn cpu_ticks() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name of the process, in parentheses, may hold spaces.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let times = fields.split_whitespace().skip(11).take(2);
    times.map(|ticks| ticks.parse::<f64>().unwrap()).sum()
}

#[tokio::main]
async fn main() -> ExitCode {
    let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
    let requests = Requests::default();
    let config = client::dynamodb_config(&engine.endpoint_url()).interceptor(requests.clone());
    let sdk = Client::from_conf(config.build());
    create_table(&sdk, TABLE).await;
    let limiter = Limiter::builder(DynamoStore::new(sdk.clone(), TABLE))
        .cascade(Cascade::No)
        .default_limits(limits())
        .deadline(Duration::from_secs(30))
        .on_unavailable(OnUnavailable::Deny)
        .build();
    let most: Vec<String> = (0..10_000).map(|n| format!("user-{n}")).collect();
    println!("creating {} buckets", most.len());
    let ours = Sender::Ours(limiter.clone());
    for entity in &most {
        ours.send(entity).await;
        // The bare SDK has buckets of its own, as its times are no real times.
        let request = limiter.acquire(entity, "bare").consume("rpm", 1).consume("tpm", 1);
        request.await.unwrap();
    }
    let item = sdk.get_item().table_name(TABLE);
    let item = item.key("PK", AttributeValue::S("ENTITY#user-0".into()));
    let item = item.key("SK", AttributeValue::S("#BUCKET#bare".into())).send().await.unwrap();
    let hash = item.item().unwrap()["pv"].as_s().unwrap().clone();
    let bare = |claims| Sender::Bare(Arc::new(Bare::new(sdk.clone(), &hash, claims)));

    let mut aims = Aims::default();
    println!(
        "| tasks | buckets | | acquires/s | ratio | CPU | write units | requests | p50 ms | p99 ms |"
    );
    println!("|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|");
    for buckets in [1, most.len()] {
        let bare = bare(buckets > 1);
        let entities = Arc::new(most[..buckets].to_vec());
        for tasks in [1, 16, 64] {
            let mut measured = [Measured::default(), Measured::default()];
            for n in 0..=SLICES {
                for (sender, measured) in [&bare, &ours].into_iter().zip(&mut measured) {
                    let before = requests.0.load(Ordering::Relaxed);
                    let slice = slice(sender, tasks, &entities).await;
                    // The first slice warms up.
                    if n > 0 {
                        measured.add(slice, requests.0.load(Ordering::Relaxed) - before);
                    }
                }
            }
            let [bare, ours] = measured.map(Measured::figures);
            for (name, figures) in [("bare SDK", &bare), ("sluicegate", &ours)] {
                let Figures { rate, cpu_ticks, write_units, requests, p50, p99 } = figures;
                let (ratio, cpu) = (rate / bare.rate, cpu_ticks / bare.cpu_ticks);
                println!(
                    "| {tasks} | {buckets} | {name} | {rate:.0} | {ratio:.2} | {cpu:.2} | {write_units:.3} \
                     | {requests:.3} | {p50:.2} | {p99:.2} |"
                );
            }
            check(&mut aims, (tasks, buckets), &bare, &ours);
        }
    }
    engine.stop().await.unwrap();
    aims.conclude()
}

/// The results of a sender's slices.
#[derive(Default)]
struct Measured {
    rates: Vec<f64>,
    cpu_ticks: f64,
    took: Vec<Duration>,
    write_units: f64,
    sent: usize,
}

struct Figures {
    rate: f64,
    /// Processor time of client and engine for a call, in ticks.
    cpu_ticks: f64,
    write_units: f64,
    requests: f64,
    p50: f64,
    p99: f64,
}

impl Measured {
    fn add(&mut self, slice: Slice, sent: usize) {
        self.rates.push(slice.rate);
        self.cpu_ticks += slice.cpu_ticks;
        self.took.extend(slice.took);
        self.write_units += slice.write_units;
        self.sent += sent;
    }

    fn figures(mut self) -> Figures {
        let count = self.took.len() as f64;
        Figures {
            rate: median(self.rates),
            cpu_ticks: self.cpu_ticks / count,
            write_units: self.write_units / count,
            requests: self.sent as f64 / count,
            p50: percentile(&mut self.took, 0.5),
            p99: percentile(&mut self.took, 0.99),
        }
    }
}

fn check(aims: &mut Aims, (tasks, buckets): (usize, usize), bare: &Figures, ours: &Figures) {
    let of = |what| format!("{what} of {tasks} tasks on {buckets} buckets");
    let (rate_least, units_most) = match (tasks, buckets) {
        (16, 1) => (4.0, 0.25),
        (64, 1) => (8.0, 0.1),
        // A claim may sometimes fail.
        _ => (0.93, 1.05),
    };
    aims.at_least(ours.rate / bare.rate, rate_least, &of("rate"));
    aims.at_most(ours.write_units, units_most, &of("write units"));
    if (tasks, buckets) == (16, 1) {
        aims.at_most(ours.p50 / bare.p50, 1.0, &of("p50"));
    }
}
