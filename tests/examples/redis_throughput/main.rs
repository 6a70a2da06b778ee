//! Measures the cost of an acquire on Redis, beside a plain script and an empty one, in one run.
//!
//! `cargo run --profile bench -p sluicegate-tests --example redis_throughput`. Slices of all take
//! turns, so that other load on the machine affects each of them, and the medians are compared. The
//! server and its clients share the machine. The first table is of `redis-benchmark` alone, with
//! the server's instructions for a call if valgrind is installed. The second one is of acquires
//! through the limiter, beside `redis-benchmark` sending the same call. The last one is of tasks
//! that share one limiter, on one bucket and on a bucket each, with the scripts that the server ran
//! for them; `-- shared` prints only that.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a tool by hand")]

mod calls;
mod instructions;

use std::time::{Duration, Instant};

use redis::cmd;
use sluicegate::Limiter;
use sluicegate_testkit::RedisServer;
use tokio::process::Command;

use self::calls::{Call, acquire, limiter};

const CALLS: usize = 64;
const SLICE: Duration = Duration::from_millis(1_500);
const SLICES: usize = 7;
/// Tasks that share a limiter.
const TASKS: [usize; 3] = [1, 16, 64];
/// Connections, and calls in flight on each.
const SHAPES: [(usize, usize); 2] = [(32, 1), (32, 16)];

/// A slice of `redis-benchmark`: calls a second.
async fn bare(server: &RedisServer, call: &Call, (connections, pipeline): (usize, usize)) -> f64 {
    let load = cmd("SCRIPT").arg("LOAD").arg(call.script()).take();
    let digest: String = server.send(&load).await;
    let [port, connections, pipeline] =
        [server.port().into(), connections, pipeline].map(|number| number.to_string());
    let output = Command::new("redis-benchmark")
        .args(["-p", &port, "-c", &connections, "-P", &pipeline, "-n", "60000"])
        .args(["-r", "1000000000", "--csv", "EVALSHA", &digest])
        .args(call.rest())
        .output()
        .await
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let columns: Vec<_> = text.lines().last().unwrap().split("\",\"").collect();
    columns[1].parse().unwrap()
}

/// A slice of acquires by so many tasks through these limiters, on so many buckets: acquires a second.
async fn through(limiters: &[Limiter], tasks: usize, buckets: usize) -> f64 {
    let start = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for n in 0..tasks {
        let limiter = limiters[n % limiters.len()].clone();
        let entity = format!("user-{}", n % buckets);
        running.spawn(async move {
            let mut count = 0_u32;
            while start.elapsed() < SLICE {
                acquire(&limiter, &entity, 1).await;
                count += 1;
            }
            count
        });
    }
    let count: u32 = running.join_all().await.into_iter().sum();
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// The number of scripts that the server ran so far, and their time in seconds.
async fn ran(server: &RedisServer) -> (f64, f64) {
    let info: String = server.send(cmd("INFO").arg("commandstats")).await;
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let field = |name: &str| {
        let (_, rest) = line.split_once(name)?;
        rest.split(',').next()?.parse::<f64>().ok()
    };
    (field("calls=").unwrap_or_default(), field("usec=").unwrap_or_default() / 1e6)
}

/// The rates of tasks that share a limiter.
async fn shared(server: &RedisServer) {
    println!("\n| tasks | buckets | acquires/s | scripts for each | server µs for each |");
    println!("|--:|--:|--:|--:|--:|");
    let limiters = [limiter(server)];
    for (tasks, buckets) in TASKS.map(|tasks| (tasks, 1)).into_iter().chain([(64, 64)]) {
        let (mut rates, mut scripts, mut micros) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..=SLICES {
            let before = ran(server).await;
            let rate = through(&limiters, tasks, buckets).await;
            let after = ran(server).await;
            let count = rate * SLICE.as_secs_f64();
            if n > 0 {
                rates.push(rate);
                scripts.push((after.0 - before.0) / count);
                micros.push((after.1 - before.1) * 1e6 / count);
            }
        }
        let (rate, scripts, micros) = (median(rates), median(scripts), median(micros));
        println!("| {tasks} | {buckets} | {rate:.0} | {scripts:.3} | {micros:.2} |");
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The rates of the scripts, as parts of the plain script's rate.
async fn scripts(server: &RedisServer, calls: &[Call]) {
    let mut costs = Vec::new();
    for call in calls {
        let count = instructions::of(server, call).await;
        costs.push(count.map_or_else(String::new, |count| count.to_string()));
    }
    println!("| connections | in flight on each | | calls/s | ratio | instructions |");
    println!("|--:|--:|---|--:|--:|--:|");
    for shape in SHAPES {
        let mut rates = vec![Vec::new(); calls.len()];
        for n in 0..=SLICES {
            for (call, rates) in calls.iter().zip(&mut rates) {
                let rate = bare(server, call, shape).await;
                // The first slice warms up.
                if n > 0 {
                    rates.push(rate);
                }
            }
        }
        let rates: Vec<_> = rates.into_iter().map(median).collect();
        for ((call, rate), count) in calls.iter().zip(&rates).zip(&costs) {
            let ((connections, pipeline), ratio) = (shape, rate / rates[1]);
            let name = call.name;
            println!("| {connections} | {pipeline} | {name} | {rate:.0} | {ratio:.2} | {count} |");
        }
    }
}

/// The rate of acquires through the limiter, beside that of the same call sent bare. Each task has
/// a bucket of its own: acquires on one bucket would share calls.
async fn limiters(server: &RedisServer, call: &Call) {
    println!("\n| connections | | calls/s | ratio |");
    println!("|--:|---|--:|--:|");
    for connections in [1, CALLS] {
        let limiters: Vec<_> = (0..connections).map(|_| limiter(server)).collect();
        let (mut sent, mut own) = (Vec::new(), Vec::new());
        for n in 0..=SLICES {
            let rates = (
                bare(server, call, (connections, CALLS / connections)).await,
                through(&limiters, CALLS, CALLS).await,
            );
            if n > 0 {
                sent.push(rates.0);
                own.push(rates.1);
            }
        }
        let (sent, own) = (median(sent), median(own));
        println!("| {connections} | redis-benchmark | {sent:.0} | 1 |");
        println!("| {connections} | sluicegate | {own:.0} | {:.2} |", own / sent);
    }
}

#[tokio::main]
async fn main() {
    let server = RedisServer::start().await;
    if std::env::args().nth(1).as_deref() == Some("shared") {
        return shared(&server).await;
    }
    let calls = Call::all(&server).await;
    scripts(&server, &calls).await;
    limiters(&server, &calls[2]).await;
    shared(&server).await;
}
