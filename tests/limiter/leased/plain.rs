//! Settings and guarantees of a limiter that hold for prepared and leased requests, too.

use std::time::Duration;

use sluicegate::{
    AcquireError, CompositeStore, LeaseMode, LeaseSettings, Limit, Limiter, LimiterBuilder,
    OnUnavailable,
};
use tokio::time::Instant;

use super::{Counted, SECOND};
use crate::scripted::{Act, Scripted};
use crate::simulated::Simulated;

fn builder() -> LimiterBuilder<CompositeStore<Counted>> {
    super::builder(&Counted::new(1), LeaseMode::default())
}

/// A request for a token of a limit of five an hour.
macro_rules! ask {
    ($limiter:expr, $tokens:expr) => {
        $limiter.acquire("u", "r").consume("rph", $tokens).limits([Limit::per_hour("rph", 5)])
    };
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_holds_for_prepared_calls() {
    let limiter = builder().shadow().build();
    let call = ask!(limiter, 1).prepare().await.unwrap();
    for n in 0..10 {
        let permit = call.acquire().await.unwrap();
        assert_eq!(permit.shadowed().is_some(), n >= 5, "{n}");
        assert_eq!(permit.into_permit().is_near_limit(), n >= 4, "{n}");
    }
    let call = ask!(limiter, 30).prepare().await.unwrap();
    assert!(call.acquire().await.unwrap().shadowed().is_some());
    assert_eq!(limiter.counters().shadowed.get(), 6);
}

#[tokio::test(start_paused = true)]
async fn waiting_holds_for_prepared_calls() {
    let limiter = builder().build();
    let limits = [Limit::per_second("rps", 1)];
    let call = limiter.acquire("u", "r").consume("rps", 1).limits(limits);
    let call = call.wait_up_to(2 * SECOND).prepare().await.unwrap();
    let start = Instant::now();
    for _ in 0..3 {
        drop(call.acquire().await.unwrap());
    }
    let waited = start.elapsed();
    assert!((2 * SECOND..3 * SECOND).contains(&waited), "{waited:?}");
}

/// A refund that the bucket has no room for is gone, as without leasing.
#[tokio::test(start_paused = true)]
async fn refund_beyond_the_burst_is_gone() {
    let limiter = builder().build();
    let permit = ask!(limiter, 1).await.unwrap();
    permit.adjust("rph", -1_000).await.unwrap();
    let mut granted = 0;
    while ask!(limiter, 1).await.is_ok() {
        granted += 1;
        assert!(granted <= 10, "more than the burst and what was held");
    }
    assert!(granted >= 4, "{granted}");
}

/// The permit of a prepared call shows the balance of the entity for which it was made.
#[tokio::test(start_paused = true)]
async fn prepared_permit_shows_the_balance_of_its_entity() {
    let limiter = builder().build();
    let limits = [Limit::per_hour("rph", 1_000)];
    let ask = |entity| limiter.acquire(entity, "r").consume("rph", 1).limits(limits.clone());
    let call = ask("u0").no_cascade().prepare().await.unwrap();
    for _ in 0..900 {
        drop(call.acquire().await.unwrap());
    }
    for _ in 0..50 {
        drop(call.acquire_for("u1").await.unwrap());
    }
    let left = async |entity: &'static str| {
        let permit = call.acquire_for(entity).await.unwrap().into_permit();
        permit.remaining().first().map(|remaining| remaining.available.get() / 1_000)
    };
    let (u0, u1) = (left("u0").await, left("u1").await);
    assert!(u0.is_some_and(|left| left <= 200), "{u0:?}");
    assert!(u1.is_some_and(|left| left >= 800), "{u1:?}");
}

/// Buckets of an outage begin with the store's last balance, whether its tokens were leased or not.
#[tokio::test(start_paused = true)]
async fn outage_begins_with_the_balance_of_the_store() {
    let table = Scripted::default();
    let clock = Simulated { start: Instant::now(), off_ms: 0 };
    let limiter = Limiter::builder(CompositeStore::with_table(table.clone()))
        .clock(clock)
        .leasing(LeaseSettings::default())
        .on_unavailable(OnUnavailable::Local)
        .build();
    let ask =
        || limiter.acquire("u", "r").consume("rpd", 1).limits([Limit::per_day("rpd", 10_000)]);
    for n in 0..7_000 {
        ask().await.unwrap();
        if n % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    table.always(Act::Hang);
    let mut granted = 0;
    while match ask().await {
        Err(AcquireError::LimitExceeded(_)) => false,
        other => other.is_ok(),
    } {
        granted += 1;
    }
    assert!((1..=3_000).contains(&granted), "{granted} of the 3,000 that were left");
}

/// The process holds all tokens of one limit. A request that lacks tokens of another limit has those
/// that it needs of both.
#[tokio::test(start_paused = true)]
async fn tokens_that_are_held_serve_a_request_that_lacks_another_limit() {
    for other in 80..100 {
        let limiter = builder().build();
        let limits = [Limit::quota("usd", 100), Limit::quota("rpm", other)];
        for n in 0..other {
            let request = limiter.acquire("u", "r").consume("usd", 1).consume("rpm", 1);
            let granted = request.limits(limits.clone()).await;
            assert!(granted.is_ok(), "{n} of {other}: {granted:?}");
        }
    }
}
