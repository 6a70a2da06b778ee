//! The cost of an admission when several processes share a bucket, none of which sees the others.

use std::time::{Duration, Instant};

use sluicegate::dynamo::DynamoTable;
use sluicegate::{AcquireError, CompositeStore, Limit, Limiter};
use sluicegate_local::client;
use sluicegate_testkit::{EngineKind, Fault, Proxy, RunningEngine};

use crate::support::patient;

const PROCESSES: u32 = 8;
const RATE_PER_S: u32 = 200;
const LATENCY: Duration = Duration::from_millis(4);
/// A model of this load gives 1.2 to 1.35.
const UNITS_MOST: f64 = 1.4;
/// A machine on which a write takes longer than this is too busy for a verdict: with a stall
/// between them all images are old. The same bound holds in simulated time (`simulated.rs`).
const WRITE_MOST: Duration = Duration::from_millis(12);
const TRIES: u32 = 6;
/// The most that an admission may cost on a machine that is that busy.
const UNITS_MOST_BUSY: f64 = 5.0;

#[derive(Debug, Default, Clone, Copy)]
struct AskedTotals {
    granted: u32,
    refused: u32,
    contended: u32,
    unanswered: u32,
    attempts: u32,
    write_units: f64,
    read_units: f64,
    took: Duration,
}

impl AskedTotals {
    fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.refused += other.refused;
        self.contended += other.contended;
        self.unanswered += other.unanswered;
        self.attempts += other.attempts;
        self.write_units += other.write_units;
        self.read_units += other.read_units;
        self.took += other.took;
    }

    fn units(&self) -> f64 {
        self.write_units / f64::from(self.granted)
    }

    /// True if the machine was too busy for a verdict.
    fn was_busy(&self) -> bool {
        self.unanswered > 0 || self.took / self.attempts.max(1) > WRITE_MOST
    }
}

/// One process: requests at random times, each in its turn or beside the one before.
async fn process(table: DynamoTable, load: f64, time: Duration) -> AskedTotals {
    let limiter = patient(Limiter::builder(CompositeStore::with_table(table)));
    let mean_s = f64::from(PROCESSES) / (f64::from(RATE_PER_S) * load);
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
            let mut tally = AskedTotals::default();
            let limits = [Limit::per_second("rps", u64::from(RATE_PER_S))];
            let start = Instant::now();
            match limiter.acquire("shared", "r").consume("rps", 1).limits(limits).no_cascade().await
            {
                Ok(permit) => {
                    let cost = permit.cost();
                    tally.granted = 1;
                    tally.attempts = cost.attempts;
                    tally.write_units = cost.write_units;
                    tally.read_units = cost.read_units;
                    tally.took = start.elapsed();
                }
                Err(AcquireError::LimitExceeded(_)) => tally.refused = 1,
                Err(AcquireError::Contended { .. }) => tally.contended = 1,
                Err(AcquireError::Unavailable(_)) => tally.unanswered = 1,
                Err(error) => panic!("{error:?}"),
            }
            tally
        });
    }
    let mut total = AskedTotals::default();
    while let Some(tally) = tasks.join_next().await {
        total.add(tally.unwrap());
    }
    total
}

/// All processes on one bucket, at a share of its rate, on a new engine: each write scans the
/// records of those before it.
async fn shared(load: f64) -> AskedTotals {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let proxy = Proxy::start(engine.endpoint_url()).await;
    proxy.inject(|_| Fault::Delay(LATENCY));
    let name = engine.create_table().await;
    // The bucket exists; no process has seen it.
    let first = DynamoTable::new(engine.client(), &name);
    process(first, 0.9, Duration::from_millis(200)).await;
    let mut processes = tokio::task::JoinSet::new();
    for _ in 0..PROCESSES {
        // Connections of its own, as a process has.
        let client = client::dynamodb(&proxy.endpoint_url());
        let table = DynamoTable::new(&client, &name);
        processes.spawn(process(table, load, Duration::from_secs(4)));
    }
    let mut total = AskedTotals::default();
    while let Some(tally) = processes.join_next().await {
        total.add(tally.unwrap());
    }
    println!(
        "{PROCESSES} processes, {:.0} % of the rate: {:.3} write units an admission; {total:?}",
        load * 100.0,
        total.units(),
    );
    assert_eq!(total.contended, 0, "{total:?}");
    assert!(total.granted > 100, "{total:?}");
    engine.stop().await;
    total
}

/// On the embedded engine alone: MiniStack takes longer for a write than the interval between two.
#[tokio::test(flavor = "multi_thread")]
async fn an_admission_costs_little_more_than_a_unit_when_a_bucket_is_shared() {
    for load in [0.3, 0.9] {
        let mut least = f64::INFINITY;
        let mut was_busy = true;
        for _ in 0..TRIES {
            let total = shared(load).await;
            was_busy &= total.was_busy();
            least = least.min(total.units());
            if least <= UNITS_MOST {
                break;
            }
        }
        let most = if was_busy { UNITS_MOST_BUSY } else { UNITS_MOST };
        assert!(least <= most, "{least} write units an admission");
    }
}
