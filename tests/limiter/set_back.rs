//! Clocks that are set back: no request waits for them to catch up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sluicegate::dynamo::DynamoTable;
use sluicegate::types::{EpochMillis, LimitsScope};
use sluicegate::{
    AcquireError, Clock, CompositeStore, LeaseMode, LeaseSettings, Limit, Limiter, TestClock,
};
use sluicegate_testkit::{RunningEngine, engines_under_test};
use tokio::time::Instant;

use crate::leased::room::Flaky;
use crate::leased::{Counted, SECOND, ample, leased};
use crate::support::{Memory, T0, at, bucket, limiter_on};

const HOUR_MS: i64 = 3_600_000;

/// The runtime's clock as a system clock: it can be set, and sleeps are not affected.
#[derive(Debug, Clone)]
struct Settable {
    start: Instant,
    off_ms: Arc<AtomicI64>,
}

impl Clock for Settable {
    fn now(&self) -> EpochMillis {
        let passed = i64::try_from(self.start.elapsed().as_millis()).unwrap();
        at(T0 + self.off_ms.load(Ordering::Relaxed) + passed)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn share(&self) -> Arc<dyn Clock> {
        Arc::new(self.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_for_tokens_waits_no_longer_than_it_said() {
    let clock = Settable { start: Instant::now(), off_ms: Arc::default() };
    let limiter = Limiter::builder(CompositeStore::with_table(Memory::default()))
        .clock(clock.clone())
        .build();
    let ask = || {
        let limits = [Limit::per_minute("rpm", 60)];
        limiter.acquire("u", "r").consume("rpm", 60).limits(limits).no_cascade()
    };
    ask().await.unwrap();
    let waiter = ask().wait_up_to(Duration::from_secs(90)).into_future();
    let set_back = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        clock.off_ms.store(-HOUR_MS, Ordering::Relaxed);
    };
    let (result, ()) = tokio::join!(waiter, set_back);
    // An hour is missing from the refill now, and it has at most a minute and a half.
    assert!(matches!(result, Err(AcquireError::LimitExceeded(_))), "{result:?}");
    assert!(clock.start.elapsed() < Duration::from_secs(180), "{:?}", clock.start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn tokens_leased_by_a_fast_clock_are_not_handed_out() {
    let clock = Settable { start: Instant::now(), off_ms: Arc::default() };
    let is_away = Arc::new(AtomicBool::new(false));
    let table = Flaky(Counted::new(1), is_away.clone());
    let limiter = leased(table, clock.clone(), LeaseSettings::default());
    let request = limiter.acquire("u5", "r").consume("rps", 1).limits(ample()).no_cascade();
    let call = request.prepare().await.unwrap();
    for _ in 0..50 {
        for entity in ["u5", "u6", "u7"] {
            drop(call.acquire_for(entity).await.unwrap());
        }
        tokio::time::sleep(SECOND / 1_000).await;
    }
    let held = || ["u5", "u6", "u7"].map(|entity| call.try_acquire_for(entity).is_some());
    assert_eq!(held(), [true; 3]);
    is_away.store(true, Ordering::Relaxed);
    clock.off_ms.store(-HOUR_MS, Ordering::Relaxed);
    assert_eq!(held(), [true; 3], "no reading noticed it");
    tokio::time::sleep(SECOND * 3 / 10).await;
    assert_eq!(held(), [false; 3]);
}

/// The table takes longer than tokens may be handed out: tokens that come with an answer are too
/// old.
#[tokio::test(start_paused = true)]
async fn demand_is_no_younger_after_the_clock_was_set_back() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 10 }] {
        let clock = Settable { start: Instant::now(), off_ms: Arc::default() };
        let max_age = SECOND / 10;
        let settings = LeaseSettings { mode, max_age, ..LeaseSettings::default() };
        let limiter = leased(Counted::new(300), clock.clone(), settings);
        let request = limiter.acquire("u0", "r").consume("rps", 1).limits(ample()).no_cascade();
        let call = request.prepare().await.unwrap();
        for _ in 0..5 {
            drop(call.acquire().await.unwrap());
        }
        let set_back = async {
            tokio::time::sleep(SECOND / 1_000).await;
            clock.off_ms.store(-HOUR_MS, Ordering::Relaxed);
        };
        let (asked, ()) = tokio::join!(call.acquire(), set_back);
        drop(asked.unwrap());
        assert!(call.try_acquire().is_none(), "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_limits_are_asked_for_again() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = DynamoTable::new(engine.client(), engine.create_table().await);
        let clock = TestClock::at(at(T0));
        let limiter = limiter_on(table.clone(), &clock);
        let set = async |rpm| {
            let limits = [Limit::per_minute("rpm", rpm)];
            table.config().set_limits(&LimitsScope::System, &limits, clock.now()).await.unwrap();
        };
        let burst = async || {
            let permit = limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
            permit.remaining()[0].rule.burst().get() / 1_000
        };
        set(60).await;
        assert_eq!(burst().await, 60);
        clock.set(at(T0 - HOUR_MS));
        set(50).await;
        assert_eq!(burst().await, 50);
        engine.stop().await;
    }
}

/// An item is again what it was before: its table was restored, or an older copy of another region
/// won. The process follows it, although its refill time has gone back.
#[tokio::test]
async fn an_item_that_goes_back_is_followed() {
    for cascade in [false, true] {
        let (table, clock) = (Memory::default(), TestClock::at(at(T0)));
        let limiter = limiter_on(table.clone(), &clock);
        let ask = || {
            let request = limiter.acquire("u", "r").consume("rpm", 10);
            let request = request.limits([Limit::per_minute("rpm", 60)]);
            if cascade {
                request.parent_limits([Limit::per_minute("rpm", 60)]).cascade_to("team")
            } else {
                request.no_cascade()
            }
        };
        ask().await.unwrap();
        let buckets = ["u", "team"].map(|entity| bucket(entity, "r"));
        let before = buckets.each_ref().map(|bucket| table.stored_now(bucket));
        clock.advance(Duration::from_secs(1));
        ask().await.unwrap();
        for (bucket, image) in buckets.iter().zip(before) {
            image.iter().for_each(|image| table.put(bucket, image));
        }
        clock.advance(Duration::from_secs(3_600));
        for most in [3, 2, 2] {
            let cost = ask().await.unwrap().cost();
            assert!(cost.attempts <= most, "cascade {cascade}: {cost:?}");
        }
    }
}
