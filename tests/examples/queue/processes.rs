//! Measures the cost of an admission when several processes ask for more of one bucket than it has.

use std::time::{Duration, Instant};

use sluicegate::{AcquireError, Limit, Limiter};

use crate::bed::Bed;
use crate::measured::Aims;

const PROCESSES: [u32; 5] = [1, 2, 8, 16, 64];
const RATE_PER_S: u32 = 200;
const LOAD: f64 = 1.5;
const LATENCY: Duration = Duration::from_millis(4);
/// After this time the initial balance of the bucket is used up.
const WARM_UP: Duration = Duration::from_secs(4);
const TIME: Duration = Duration::from_secs(6);
const UNITS_MOST: f64 = 1.4;

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    granted: u32,
    refused: u32,
    contended: u32,
    /// The write units of granted requests.
    write_units: f64,
}

/// One process: requests at random times, independent of the results of earlier ones.
async fn process(limiter: Limiter, processes: u32, time: Duration) -> Tally {
    let mean_s = f64::from(processes) / (f64::from(RATE_PER_S) * LOAD);
    let mut tasks = tokio::task::JoinSet::new();
    let end = Instant::now() + time;
    let mut next = tokio::time::Instant::now();
    loop {
        next += Duration::from_secs_f64(-mean_s * (1.0 - fastrand::f64()).ln());
        if next.into_std() >= end {
            break;
        }
        tokio::time::sleep_until(next).await;
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let limits = [Limit::per_second("rps", u64::from(RATE_PER_S))];
            limiter.acquire("shared", "r").consume("rps", 1).limits(limits).await
        });
    }
    let mut total = Tally::default();
    while let Some(answer) = tasks.join_next().await {
        match answer.unwrap() {
            Ok(permit) => {
                total.granted += 1;
                total.write_units += permit.cost().write_units;
            }
            Err(AcquireError::LimitExceeded(_)) => total.refused += 1,
            Err(AcquireError::Contended { .. }) => total.contended += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    total
}

async fn all(limiters: &[Limiter], time: Duration) -> Tally {
    let count = u32::try_from(limiters.len()).unwrap();
    let running = limiters.iter().map(|limiter| process(limiter.clone(), count, time));
    let running: tokio::task::JoinSet<_> = running.collect();
    let mut total = Tally::default();
    for tally in running.join_all().await {
        total.granted += tally.granted;
        total.refused += tally.refused;
        total.contended += tally.contended;
        total.write_units += tally.write_units;
    }
    total
}

pub(crate) async fn measure(aims: &mut Aims) {
    println!(
        "\n| processes | granted | refused | contended | units of the granted | all writes | reads |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    for processes in PROCESSES {
        let bed = Bed::with_latency(LATENCY).await;
        let limiters: Vec<_> = (0..processes).map(|_| bed.process()).collect();
        let warm = all(&limiters, WARM_UP).await;
        let reads = || bed.proxy.received("GetItem") + bed.proxy.received("BatchGetItem");
        let before = (bed.writes(), reads());
        let total = all(&limiters, TIME).await;
        let granted = f64::from(total.granted);
        let (writes, reads) = (bed.writes() - before.0, (reads() - before.1) as f64);
        let units = total.write_units / granted;
        let (writes, reads) = (writes / granted, reads / granted);
        let contended = warm.contended + total.contended;
        println!(
            "| {processes} | {} | {} | {contended} | {units:.3} | {writes:.3} | {reads:.3} |",
            total.granted, total.refused,
        );
        aims.at_most(units, UNITS_MOST, &format!("write units of {processes} processes"));
        aims.at_most(f64::from(contended), 0.0, &format!("contended of {processes} processes"));
        bed.stop().await;
    }
}
