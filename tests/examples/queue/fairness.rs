//! Checks that all tasks on one bucket are served equally.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::bed::{Bed, plenty};
use crate::measured::{Aims, median, percentile};

const TASKS: usize = 64;
const REQUESTS: usize = 10_000;
/// Long compared with the pauses that a shared machine inserts.
const LATENCY: Duration = Duration::from_millis(4);
/// A multiple of the median.
const MOST: f64 = 2.0;
/// Its own write, one that it came too late for, and one that is sent before its task runs.
const WRITES_MOST: f64 = 3.0;

/// Requests of each task until all of them together have made their number.
pub(crate) async fn measure(aims: &mut Aims) {
    let bed = Arc::new(Bed::with_latency(LATENCY).await);
    let limiter = bed.process();
    limiter.acquire("user-0", "r").consume("rpm", 1).limits(plenty()).await.unwrap();
    let next = Arc::new(AtomicUsize::new(0));
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (limiter, next, bed) = (limiter.clone(), next.clone(), bed.clone());
        running.spawn(async move {
            let (mut took, mut writes) = (Vec::new(), Vec::new());
            while next.fetch_add(1, Ordering::Relaxed) < REQUESTS {
                let (sent, before) = (Instant::now(), bed.writes());
                let request = limiter.acquire("user-0", "r").consume("rpm", 1);
                request.limits(plenty()).await.unwrap();
                took.push(sent.elapsed());
                writes.push(bed.writes() - before);
            }
            (took, writes)
        });
    }
    let (mut tasks, writes): (Vec<_>, Vec<_>) = running.join_all().await.into_iter().unzip();
    let writes: Vec<f64> = writes.concat();
    let mut all: Vec<_> = tasks.iter().flatten().copied().collect();
    let grants: Vec<_> = tasks.iter().map(|took| took.len() as f64).collect();
    let waits: Vec<_> = tasks.iter_mut().map(|took| percentile(took, 0.5)).collect();
    println!(
        "\n| {TASKS} tasks, {REQUESTS} requests | least | median | most | most of the median |"
    );
    println!("|---|--:|--:|--:|--:|");
    for (name, figures) in [("grants of a task", grants), ("median wait of a task, ms", waits)] {
        let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let most = figures.iter().copied().fold(0.0, f64::max);
        let median = median(figures);
        println!("| {name} | {least:.2} | {median:.2} | {most:.2} | {:.2}x |", most / median);
        aims.at_most(most / median, MOST, &format!("{name}, most"));
        aims.at_most(median / least.max(1.0), MOST, &format!("{name}, median to least"));
    }
    let most = writes.iter().copied().fold(0.0, f64::max);
    let least = writes.iter().copied().fold(f64::INFINITY, f64::min);
    let half = median(writes);
    println!(
        "| writes sent while a request waits | {least} | {half} | {most} | {:.2}x |",
        most / half,
    );
    aims.at_most(most, WRITES_MOST, "writes sent while a request waits");
    // A pause of the machine delays the requests that wait then, so the maximum is no aim.
    let [least, half, most] = [0.0, 0.5, 1.0].map(|share| percentile(&mut all, share));
    let ratio = most / half;
    println!("| wait of a request, ms | {least:.2} | {half:.2} | {most:.2} | {ratio:.2}x |");
}
