//! A store that takes longer to answer than leased tokens last.

use std::time::Duration;

use sluicegate::{AcquireError, LeaseMode, Limiter};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{Counted, SECOND, ample, builder, consumed};

const MILLISECOND: Duration = Duration::from_millis(1);
const AWAY_MS: u64 = 2_500;
const TASKS: u64 = 200;
const EACH: u64 = 5;

async fn one(limiter: &Limiter) -> Result<(), AcquireError> {
    let asked = limiter.acquire("u0", "r").consume("rps", 1).limits(ample());
    asked.no_cascade().await.map(drop)
}

/// Requests for one token, by tasks that ask again when they have it; returns the time.
async fn busy(mode: LeaseMode) -> (Counted, u64) {
    let table = Counted::new(AWAY_MS);
    let limiter = builder(&table, mode).deadline(20 * SECOND).build();
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            for _ in 0..EACH {
                one(&limiter).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let took_ms = u64::try_from(start.elapsed().as_millis()).unwrap();
    let report = limiter.shutdown(20 * SECOND).await;
    assert!(report.unsettled.is_empty(), "{report:?}");
    (table, took_ms)
}

#[tokio::test(start_paused = true)]
async fn a_write_serves_everybody_who_waits_for_it() {
    fastrand::seed(5);
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 1_000 }] {
        let (table, took_ms) = busy(mode).await;
        println!("{mode:?}: {took_ms} ms, {} writes", table.writes());
        assert_eq!(consumed(&table, "u0").await, i64::try_from(TASKS * EACH).unwrap(), "{mode:?}");
        // A request waits for the write in flight, and for its own.
        assert!(took_ms <= EACH * 2 * AWAY_MS * 3 / 2, "{mode:?}: {took_ms} ms");
        assert!(table.writes() <= 4 * EACH, "{mode:?}: {} writes", table.writes());
    }
}

#[tokio::test(start_paused = true)]
async fn caller_that_is_served_and_gone_consumes_nothing() {
    let table = Counted::new(AWAY_MS);
    let limiter = builder(&table, LeaseMode::default()).deadline(20 * SECOND).build();
    let spawned = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { one(&limiter).await })
    };
    // The first leases for itself, the second for the third too.
    let first = spawned();
    sleep(MILLISECOND).await;
    let second = spawned();
    sleep(MILLISECOND).await;
    let mut third = Box::pin(one(&limiter));
    assert!(timeout(MILLISECOND, &mut third).await.is_err(), "it waits");
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    // Its token is there, and it does not learn of it.
    drop(third);
    limiter.shutdown(20 * SECOND).await;
    assert_eq!(consumed(&table, "u0").await, 2);
}

#[tokio::test(start_paused = true)]
async fn caller_that_is_answered_and_gone_consumes_nothing() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 1_000 }] {
        let table = Counted::new(AWAY_MS);
        let limiter = builder(&table, mode).deadline(20 * SECOND).build();
        let mut asked = Box::pin(one(&limiter));
        assert!(timeout(MILLISECOND, &mut asked).await.is_err(), "it waits");
        sleep(10 * SECOND).await;
        drop(asked);
        // If its tokens were taken, the next write gives them back.
        one(&limiter).await.unwrap();
        limiter.shutdown(20 * SECOND).await;
        assert_eq!(consumed(&table, "u0").await, 1, "{mode:?}");
    }
}
