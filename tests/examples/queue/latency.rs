//! Measures how long requests wait that share writes, beside a single request.

use std::time::{Duration, Instant};

use sluicegate::Limiter;

use crate::bed::{Bed, plenty};
use crate::measured::{Aims, percentile};

const LATENCIES_MS: [u64; 2] = [4, 20];
const SLICE: Duration = Duration::from_millis(1_000);
const SLICES: usize = 5;
/// Tasks, and limiters that they are spread over: each has a write of its own in flight.
const SHAPES: [(usize, usize); 9] =
    [(1, 1), (2, 1), (4, 1), (16, 1), (64, 1), (16, 2), (64, 2), (16, 4), (64, 4)];
const P50_MOST: f64 = 1.6;
const P99_MOST: f64 = 2.5;

struct Slice {
    took: Vec<Duration>,
    rate: f64,
}

async fn slice(limiters: &[Limiter], tasks: usize) -> Slice {
    let start = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for n in 0..tasks {
        let limiter = limiters[n % limiters.len()].clone();
        running.spawn(async move {
            let mut took = Vec::new();
            while start.elapsed() < SLICE {
                let sent = Instant::now();
                let request = limiter.acquire("user-0", "r").consume("rpm", 1).consume("tpm", 1);
                request.limits(plenty()).await.unwrap();
                took.push(sent.elapsed());
            }
            took
        });
    }
    let took: Vec<_> = running.join_all().await.into_iter().flatten().collect();
    let rate = took.len() as f64 / start.elapsed().as_secs_f64();
    Slice { took, rate }
}

pub(crate) async fn measure(aims: &mut Aims) {
    println!("\n| latency | tasks | in flight | acquires/s | writes each | p50 | p99 |");
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    for latency_ms in LATENCIES_MS {
        let bed = Bed::with_latency(Duration::from_millis(latency_ms)).await;
        let limiters: Vec<_> = (0..4).map(|_| bed.process()).collect();
        let mut took = SHAPES.map(|_| Vec::new());
        let (mut rates, mut writes) = (SHAPES.map(|_| 0.0), SHAPES.map(|_| 0.0));
        for n in 0..=SLICES {
            for (which, (tasks, flights)) in SHAPES.into_iter().enumerate() {
                let before = bed.writes();
                let done = slice(&limiters[..flights], tasks).await;
                // The first slice warms up.
                if n > 0 {
                    took[which].extend(done.took);
                    rates[which] += done.rate / SLICES as f64;
                    writes[which] += bed.writes() - before;
                }
            }
        }
        let mut alone = (0.0, 0.0);
        for (which, (tasks, flights)) in SHAPES.into_iter().enumerate() {
            let took = &mut took[which];
            let writes = writes[which] / took.len() as f64;
            let (p50, p99) = (percentile(took, 0.5), percentile(took, 0.99));
            if tasks == 1 {
                alone = (p50, p99);
            }
            let (p50_ratio, p99_ratio) = (p50 / alone.0, p99 / alone.1);
            println!(
                "| {latency_ms} ms | {tasks} | {flights} | {:.0} | {writes:.3} \
                 | {p50:.1} ms, {p50_ratio:.2}x | {p99:.1} ms, {p99_ratio:.2}x |",
                rates[which],
            );
            if flights == 1 {
                let of = |what| format!("{what} of {tasks} tasks at {latency_ms} ms");
                aims.at_most(p50_ratio, P50_MOST, &of("p50"));
                aims.at_most(p99_ratio, P99_MOST, &of("p99"));
            }
        }
        bed.stop().await;
    }
}
