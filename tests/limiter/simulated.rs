//! Many processes on one bucket in simulated time: their cost on a table that answers after a few
//! milliseconds, and the result of excess requests.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sluicegate::settings::BreakerConfig;
use sluicegate::types::EpochMillis;
use sluicegate::{AcquireError, Clock, CompositeStore, Limit, Limiter, OnUnavailable};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::intercept::{Call, intercepting};
use crate::support::{Memory, T0, at};

/// Tokens a second of the bucket, and its burst.
const RATE: u32 = 200;
const TIME: Duration = Duration::from_secs(30);

/// A table with a round trip of so many milliseconds, more or less.
#[derive(Debug, Clone)]
pub(crate) struct Far(pub(crate) Memory, pub(crate) u64);

impl Far {
    async fn travel(&self) {
        let one_way_us = 500 * self.1;
        let delay_us = fastrand::u64(one_way_us / 2..one_way_us * 3 / 2);
        tokio::time::sleep(Duration::from_micros(delay_us)).await;
    }

    async fn intercept<T>(&self, _: Call<'_>, call: impl Future<Output = T>) -> T {
        self.travel().await;
        let result = call.await;
        self.travel().await;
        result
    }
}

intercepting!(Far, 0);

/// The clock of the runtime, which stands still while there is work; some milliseconds off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simulated {
    pub(crate) start: Instant,
    pub(crate) off_ms: i64,
}

impl Clock for Simulated {
    fn now(&self) -> EpochMillis {
        let passed = i64::try_from(self.start.elapsed().as_millis()).unwrap();
        at(T0 + self.off_ms + passed)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn share(&self) -> Arc<dyn Clock> {
        Arc::new(*self)
    }
}

#[derive(Debug, Default)]
struct Tally {
    granted: u32,
    refused: u32,
    /// Requests that were neither granted nor refused.
    lost: u32,
    write_units: f64,
}

impl Tally {
    fn units(&self) -> f64 {
        self.write_units / f64::from(self.granted)
    }
}

/// Requests at random instants, each at a random process, for a share of the rate.
async fn load(processes: usize, share: f64, away_ms: u64) -> Tally {
    fastrand::seed(11);
    let (table, start) = (Far(Memory::default(), away_ms), Instant::now());
    let limiters: Vec<_> = (0..processes)
        .map(|_| {
            let clock = Simulated { start, off_ms: fastrand::i64(-3..=3) };
            Limiter::builder(CompositeStore::with_table(table.clone()))
                .clock(clock)
                .deadline(Duration::from_secs(1))
                .on_unavailable(OnUnavailable::Deny)
                .breaker(BreakerConfig::never())
                .build()
        })
        .collect();
    let mean_s = 1.0 / (share * f64::from(RATE));
    let mut tasks = JoinSet::new();
    let mut next = start;
    loop {
        next += Duration::from_secs_f64(-mean_s * (1.0 - fastrand::f64()).ln());
        if next >= start + TIME {
            break;
        }
        let limiter = limiters[fastrand::usize(..processes)].clone();
        tasks.spawn(async move {
            tokio::time::sleep_until(next).await;
            let limits = [Limit::per_second("rps", u64::from(RATE))];
            limiter.acquire("u", "r").consume("rps", 1).limits(limits).no_cascade().await
        });
    }
    let mut tally = Tally::default();
    while let Some(result) = tasks.join_next().await {
        match result.unwrap() {
            Ok(permit) => {
                tally.granted += 1;
                tally.write_units += permit.cost().write_units;
            }
            Err(AcquireError::LimitExceeded(_)) => tally.refused += 1,
            Err(_) => tally.lost += 1,
        }
    }
    let units = tally.units();
    println!(
        "{processes} processes, {away_ms} ms, {share} of the rate: {units:.3} units, {tally:?}"
    );
    tally
}

#[tokio::test(start_paused = true)]
async fn a_process_alone_spends_one_unit_for_an_admission() {
    for share in [0.3, 0.9] {
        let tally = load(1, share, 4).await;
        assert!(tally.units() <= 1.01, "{share}: {tally:?}");
        assert_eq!((tally.refused, tally.lost), (0, 0), "{share}: {tally:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn processes_that_share_a_bucket_spend_little_more() {
    for processes in [8, 64] {
        for share in [0.3, 0.9] {
            let tally = load(processes, share, 4).await;
            assert!(tally.units() <= 1.4, "{processes}, {share}: {tally:?}");
            assert_eq!((tally.refused, tally.lost), (0, 0), "{processes}, {share}: {tally:?}");
        }
    }
}

/// Requests beyond the rate are refused for lack of tokens, never of attempts, and little of the
/// rate is unused.
#[tokio::test(start_paused = true)]
async fn too_much_is_refused_and_never_contended() {
    for (processes, away_ms, units) in [
        (1, 4, 1.05),
        (2, 4, 1.05),
        (8, 4, 1.4),
        (64, 4, 1.4),
        (1, 20, 1.05),
        (8, 20, 1.4),
        (64, 20, 1.6),
    ] {
        let tally = load(processes, 1.5, away_ms).await;
        let case = format!("{processes} processes, {away_ms} ms: {tally:?}");
        assert!(tally.refused > 100, "{case}");
        assert_eq!(tally.lost, 0, "{case}");
        assert!(tally.units() <= units, "{case}");
        assert!(tally.granted > 30 * RATE, "{case}");
    }
}
