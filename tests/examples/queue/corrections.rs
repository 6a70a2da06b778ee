//! Measures the cost of a correction when many tasks correct their permits on one bucket.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;

use crate::bed::{Bed, plenty};
use crate::measured::Aims;

const TASKS: usize = 64;
const ROUNDS: i64 = 50;
const LATENCIES_MS: [u64; 2] = [0, 4];
const UNITS_MOST: f64 = 0.2;

pub(crate) async fn measure(aims: &mut Aims) {
    println!("\n| latency | corrections of {TASKS} tasks | write units each |");
    println!("|--:|--:|--:|");
    for latency_ms in LATENCIES_MS {
        let bed = Bed::with_latency(Duration::from_millis(latency_ms)).await;
        let limiter = bed.process();
        let barrier = Arc::new(Barrier::new(TASKS + 1));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let (limiter, barrier) = (limiter.clone(), barrier.clone());
            tasks.spawn(async move {
                for round in 0..ROUNDS {
                    let request = limiter.acquire("user-0", "r").consume("tpm", 500);
                    let permit = request.limits(plenty()).await.unwrap();
                    barrier.wait().await;
                    barrier.wait().await;
                    // Some took more than they asked for, others less.
                    let by = if round % 2 == 0 { 150 } else { -150 };
                    permit.adjust("tpm", by).await.unwrap();
                    barrier.wait().await;
                }
            });
        }
        let mut writes = 0.0;
        for _ in 0..ROUNDS {
            barrier.wait().await;
            let before = bed.writes();
            barrier.wait().await;
            barrier.wait().await;
            writes += bed.writes() - before;
        }
        tasks.join_all().await;
        let corrections = TASKS as f64 * ROUNDS as f64;
        let units = writes / corrections;
        println!("| {latency_ms} ms | {corrections} | {units:.3} |");
        aims.at_most(units, UNITS_MOST, &format!("units of a correction at {latency_ms} ms"));
        bed.stop().await;
    }
}
