//! What a process holds: how old it may get, how much of it there may be, and how it ends.

use std::time::Duration;

use sluicegate::{
    AcquireError, EpochMillis, LeaseMode, LeaseSettings, LeasedLimiter, Limit, TestClock,
};

use super::{Counted, Mortal, SECOND, consumed, leased, limiter, strict};
use crate::support::{T0, at};

type Stopped = LeasedLimiter<Counted, TestClock>;

fn by_hand(table: &Counted, settings: LeaseSettings) -> (Stopped, TestClock) {
    let clock = TestClock::at(at(T0));
    (leased(table.clone(), clock.clone(), settings), clock)
}

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rps", 60_000)]
}

async fn ask(limiter: &Stopped, entity: &str) -> Result<(), AcquireError> {
    let request = limiter.acquire(entity, "r").consume("rps", 1).limits(rpm()).no_cascade();
    request.await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_frozen_hands_out_nothing_of_what_it_held() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 100 }] {
        let table = Counted::new(1);
        let (limiter, clock) = by_hand(&table, LeaseSettings { mode, ..LeaseSettings::default() });
        let call = limiter.acquire("u0", "r").consume("rps", 1).limits(rpm()).no_cascade();
        let call = call.prepare().await.unwrap();
        while call.try_acquire().is_none() {
            drop(call.acquire().await.unwrap());
            clock.advance(Duration::from_millis(1));
        }
        clock.advance(Duration::from_millis(1_001));
        assert!(call.try_acquire().is_none(), "{mode:?}");
        drop(call.acquire().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_leaves_nothing_behind() {
    let table = Counted::new(1);
    let (limiter, clock) = by_hand(&table, LeaseSettings::default());
    for invocation in 1..=3 {
        for _ in 0..20 {
            ask(&limiter, "u0").await.unwrap();
            clock.advance(Duration::from_millis(1));
        }
        let report = limiter.flush(SECOND).await;
        assert!(report.unsettled.is_empty(), "{report:?}");
        assert_eq!(consumed(&table, "u0").await, 20 * invocation);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_shutdown_every_request_is_a_write() {
    let table = Counted::new(1);
    let (limiter, _) = by_hand(&table, LeaseSettings::default());
    ask(&limiter, "u0").await.unwrap();
    limiter.shutdown(SECOND).await;
    let writes = table.writes();
    for _ in 0..10 {
        ask(&limiter, "u0").await.unwrap();
    }
    assert_eq!(table.writes(), writes + 10);
    assert_eq!(consumed(&table, "u0").await, 11);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_reports_what_it_could_not_settle() {
    let table = Counted::new(1);
    let mortal = Mortal::new(&table);
    let clock = TestClock::at(at(T0));
    let mode = LeaseMode::WriteBehind { threshold: 10 };
    let settings = LeaseSettings { mode, ..LeaseSettings::default() };
    let limiter = leased(mortal.clone(), clock, settings);
    for entity in ["u0", "u1"] {
        let request = limiter.acquire(entity, "r").consume("rps", 1).limits(rpm());
        request.no_cascade().await.unwrap();
    }
    mortal.kill();
    let report = limiter.shutdown(SECOND).await;
    let mut left: Vec<_> = report.unsettled.iter().map(|(id, _)| id.entity.as_str()).collect();
    left.sort_unstable();
    assert_eq!((report.settled, left), (0, vec!["u0", "u1"]));
}

#[tokio::test(start_paused = true)]
async fn beyond_max_keys_requests_are_writes_until_others_are_settled() {
    let table = Counted::new(1);
    let settings = LeaseSettings { max_keys: 10, ..LeaseSettings::default() };
    let clock = crate::simulated::Simulated { start: tokio::time::Instant::now(), off_ms: 0 };
    let limiter = leased(table.clone(), clock, settings);
    for round in 0..30 {
        for key in 0..20 {
            let request = limiter.acquire(format!("u{key}"), "r").consume("rps", 1).limits(rpm());
            request.no_cascade().await.unwrap();
            assert!(limiter.store().held_keys() <= 10, "round {round}");
        }
    }
    // The held ones need hardly any.
    let writes = table.writes();
    assert!((300..400).contains(&writes), "{writes} writes");
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(limiter.store().held_keys(), 0);
    for key in 0..20 {
        assert_eq!(consumed(&table, &format!("u{key}")).await, 30);
    }
}

#[tokio::test(start_paused = true)]
async fn child_and_parent_are_decided_together() {
    let table = Counted::new(1);
    let limiter = strict(&table);
    let ask = |entity: &'static str| {
        let limits = [Limit::per_minute("rps", 30)];
        let request = limiter.acquire(entity, "r").consume("rps", 1).limits(limits);
        request.parent_limits([Limit::per_minute("rps", 40)]).cascade_to("org")
    };
    for _ in 0..30 {
        ask("u0").await.unwrap();
    }
    let Err(AcquireError::LimitExceeded(refused)) = ask("u0").await else { panic!("admitted") };
    let violated = refused.limits.iter().map(|limit| (limit.entity.as_str(), limit.is_violated()));
    assert_eq!(violated.collect::<Vec<_>>(), [("u0", true), ("org", false)]);
    for _ in 0..10 {
        ask("u1").await.unwrap();
    }
    let Err(AcquireError::LimitExceeded(refused)) = ask("u1").await else { panic!("admitted") };
    assert!(
        refused.limits.iter().any(|limit| limit.entity.as_str() == "org" && limit.is_violated())
    );
    limiter.shutdown(SECOND).await;
    let spent = [consumed(&table, "u0").await, consumed(&table, "u1").await];
    assert_eq!((spent, consumed(&table, "org").await), ([30, 10], 40));
}

#[tokio::test(start_paused = true)]
async fn corrections_stay_in_memory_and_debts_go_through() {
    let table = Counted::new(1);
    let limiter = limiter(&table, LeaseMode::default());
    let ask = |tokens| {
        let request = limiter.acquire("u0", "r").consume("rps", tokens);
        request.limits([Limit::per_minute("rps", 1_000)]).no_cascade()
    };
    let lease = ask(100).await.unwrap();
    let writes = table.writes();
    lease.adjust("rps", -60).await.unwrap();
    lease.adjust("rps", 20).await.unwrap();
    assert_eq!(table.writes(), writes);
    lease.adjust("rps", 40).await.unwrap();
    assert_eq!(table.writes(), writes);
    // More than is held: a debt.
    lease.adjust("rps", 1_000).await.unwrap();
    ask(1).await.unwrap_err();
    limiter.shutdown(SECOND).await;
    assert_eq!(consumed(&table, "u0").await, 1_100);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_exact_wait() {
    let table = Counted::new(1);
    let (limiter, clock) = by_hand(&table, LeaseSettings::default());
    let ask = || {
        let request = limiter.acquire("u0", "r").consume("rps", 1);
        request.limits([Limit::per_minute("rps", 60)]).no_cascade()
    };
    for _ in 0..60 {
        drop(ask().await.unwrap());
    }
    for _ in 0..3 {
        let Err(AcquireError::LimitExceeded(refused)) = ask().await else { panic!("admitted") };
        let wait = refused.retry_after.unwrap();
        assert_eq!(wait, SECOND);
        clock.advance(wait - Duration::from_millis(1));
        ask().await.unwrap_err();
        clock.advance(Duration::from_millis(1));
        ask().await.unwrap();
    }
    let now: EpochMillis = sluicegate::Clock::now(&clock);
    assert_eq!(now, at(T0 + 3_000));
}
