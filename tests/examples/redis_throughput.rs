//! Acquires on Redis beside `redis-benchmark` sending the same script, in one run.
//!
//! `cargo run --profile bench -p sluicegate-tests --example redis_throughput`. Slices of both
//! alternate, so that whatever else the machine does meanwhile falls on both; the medians are
//! compared. Both have as many connections, and 64 calls under way on them together. The server and
//! the two clients share the machine.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a tool by hand")]

use std::time::{Duration, Instant};

use redis::cmd;
use sluicegate::redis::{RedisStore, Time};
use sluicegate::{Cascade, Limit, Limiter, OnUnavailable};
use sluicegate_testkit::RedisServer;
use tokio::process::Command;

const CALLS: usize = 64;
const SLICE: Duration = Duration::from_millis(1_500);
const SLICES: usize = 7;
/// What the store sends.
const SCRIPT: &str = concat!(
    include_str!("../../crates/limiter/src/redis/lua/bucket.lua"),
    "\n",
    include_str!("../../crates/limiter/src/redis/lua/acquire.lua"),
);

fn limit() -> Limit {
    Limit::per_second("rps", 1_000_000)
}

async fn acquire(limiter: &Limiter<RedisStore>) {
    limiter.acquire("user-123", "gpt-4").consume("rps", 1).limits([limit()]).await.unwrap();
}

/// A slice of ours: acquires a second.
async fn ours(limiters: &[Limiter<RedisStore>]) -> f64 {
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..CALLS {
        let limiter = limiters[n % limiters.len()].clone();
        tasks.spawn(async move {
            let mut count = 0_u32;
            while start.elapsed() < SLICE {
                acquire(&limiter).await;
                count += 1;
            }
            count
        });
    }
    let count: u32 = tasks.join_all().await.into_iter().sum();
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// A slice of `redis-benchmark`: calls a second.
async fn theirs(server: &RedisServer, connections: usize, digest: &str, rule: &str) -> f64 {
    let port = server.port().to_string();
    let (clients, pipeline) = (connections.to_string(), (CALLS / connections).to_string());
    let output = Command::new("redis-benchmark")
        .args(["-p", &port, "-c", &clients, "-P", &pipeline, "-n", "50000", "-r", "1000000000"])
        .args(["--csv", "EVALSHA", digest, "1", "sluicegate:{user-123}#gpt-4"])
        // The time is the server's, the id another in every call.
        .args(["", "__rand_int__", "0", "1", "rps", rule, "1000"])
        .output()
        .await
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let columns: Vec<_> = text.lines().last().unwrap().split("\",\"").collect();
    columns[1].parse().unwrap()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[tokio::main]
async fn main() {
    let server = RedisServer::start().await;
    let limiter = || {
        let store = RedisStore::new(server.url()).unwrap().time(Time::Server);
        Limiter::new(store)
            .cascade(Cascade::No)
            .deadline(Duration::from_secs(30))
            .on_unavailable(OnUnavailable::Deny)
    };
    acquire(&limiter()).await;
    let digest = redis::Script::new(SCRIPT).get_hash().to_owned();
    let known: (bool,) = server.send(cmd("SCRIPT").arg("EXISTS").arg(&digest)).await;
    assert!(known.0, "the store sends another script");
    let key = "sluicegate:{user-123}#gpt-4";
    let rule: String = server.send(cmd("HGET").arg(key).arg("rule:rps")).await;

    println!("| connections | | calls/s | ratio |");
    println!("|--:|---|--:|--:|");
    for connections in [1, CALLS] {
        let limiters: Vec<_> = (0..connections).map(|_| limiter()).collect();
        let (mut bare, mut own) = (Vec::new(), Vec::new());
        for n in 0..=SLICES {
            let rates = (theirs(&server, connections, &digest, &rule).await, ours(&limiters).await);
            // The first slice warms up.
            if n > 0 {
                bare.push(rates.0);
                own.push(rates.1);
            }
        }
        let (bare, own) = (median(bare), median(own));
        println!("| {connections} | redis-benchmark | {bare:.0} | 1 |");
        println!("| {connections} | sluicegate | {own:.0} | {:.2} |", own / bare);
    }
}
