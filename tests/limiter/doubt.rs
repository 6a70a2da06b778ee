//! Writes whose result is unknown at first: the errors that are allowed, and the counts.

use std::time::Duration;

use sluicegate::settings::{Certainty, StoreSettings};
use sluicegate::{AcquireError, Limit, Limiter, TestClock};

use crate::scripted::{Act, Scripted};
use crate::support::{Shared, T0, at, bucket, limiter_as, limiter_on, name};

/// One token a second, 60 at once.
macro_rules! ask {
    ($limiter:expr, $milli:expr) => {
        $limiter
            .acquire("u", "r")
            .consume_milli("rpm", $milli)
            .limits([Limit::per_minute("rpm", 60)])
            .no_cascade()
    };
}

fn fresh() -> (Scripted, TestClock, Limiter) {
    let (table, clock) = (Scripted::default(), TestClock::at(at(T0)));
    let limiter = limiter_on(table.clone(), &clock);
    (table, clock, limiter)
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_does_not_hide_that_tokens_may_have_been_taken() {
    let (table, _, limiter) = fresh();
    ask!(limiter, 1_000).await.unwrap();
    table.on_writes([Act::LoseReply, Act::Deny]);
    let result = ask!(limiter, 1_000).await;
    assert!(matches!(result, Err(AcquireError::Unavailable(_))), "{result:?}");
    // Without a lost answer, the error stays as it is.
    table.on_writes([Act::Deny]);
    let result = ask!(limiter, 1_000).await;
    assert!(matches!(result, Err(AcquireError::Setup(_))), "{result:?}");
}

/// Its write took effect, four others followed it, and an image learned from another task makes it
/// short: it sends nothing more that could show the result.
#[tokio::test(start_paused = true)]
async fn a_write_that_nobody_remembers_is_counted_when_the_request_is_refused() {
    let (table, clock, limiter) = fresh();
    ask!(limiter, 1_000).await.unwrap();
    let other = crate::support::limiter_on(table.clone(), &clock);
    table.on_writes([Act::LoseReply]);
    let lost = ask!(limiter, 30_000).into_future();
    let others = async {
        for _ in 0..4 {
            ask!(other, 1).await.unwrap();
        }
        // The next must claim, and those behind it wait.
        clock.advance(Duration::from_secs(1));
        table.on_writes([Act::Slow(Duration::from_millis(20))]);
        ask!(limiter, 28_000).await.unwrap();
    };
    let (lost, ()) = tokio::join!(lost, others);
    assert!(matches!(lost, Err(AcquireError::LimitExceeded(_))), "{lost:?}");
    assert_eq!(limiter.counters().ambiguous.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_returns_no_item_does_not_make_the_item_go() {
    let (table, clock, first) = fresh();
    ask!(first, 50_000).await.unwrap();
    // A clock was an hour ahead, and the limit is known from the item alone.
    let mut image = table.memory.stored(&bucket("u", "r")).await.unwrap();
    image.refilled_at = at(T0 + 3_600_000);
    table.memory.place(&bucket("u", "r"), Some(image)).await;
    let settings =
        StoreSettings { certainty: Certainty::Transactional, ..StoreSettings::default() };
    let limiter = limiter_as(table.clone(), &clock, settings);
    let result = limiter.acquire("u", "r").consume("rpm", 11).no_cascade().await;
    assert!(matches!(result, Err(AcquireError::LimitExceeded(_))), "{result:?}");
    let stored = table.memory.stored(&bucket("u", "r")).await.unwrap();
    assert_eq!((stored.refilled_at, stored.limits[&name("rpm")].tokens.get()), (at(T0), 10_000));
}
