//! Calls whose request or answer was lost: done once, or reported as ambiguous.

use std::time::Duration;

use redis::cmd;
use sluicegate::redis::RedisStore;
use sluicegate::settings::BreakerConfig;
use sluicegate::{AdjustError, Limit, Limiter, OnUnavailable, TestClock};
use sluicegate_testkit::{Cut, RedisServer, Wire};

use super::{T0, at, field, on};

const KEY: &str = "sluicegate:{u}#r";

struct Disturbed {
    server: RedisServer,
    wire: Wire,
    limiter: Limiter,
}

async fn disturbed() -> Disturbed {
    let server = RedisServer::start().await;
    let wire = Wire::start(server.address()).await;
    let store = RedisStore::new(format!("redis://{}/", wire.address())).unwrap();
    let limiter = on(store, &TestClock::at(at(T0)));
    // Connected, and the scripts are known.
    limiter.acquire("u", "r").consume("l", 1).limits(limits()).await.unwrap();
    Disturbed { server, wire, limiter }
}

fn limits() -> [Limit; 1] {
    [Limit::quota("l", 100)]
}

impl Disturbed {
    async fn left(&self) -> i64 {
        field::<i64>(&self.server, KEY, "tokens:l").await / 1_000
    }

    async fn acquire(&self) -> sluicegate::Permit {
        self.limiter.acquire("u", "r").consume("l", 10).limits(limits()).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn lost_call_is_done_once() {
    let on = disturbed().await;
    for (cut, left) in [(Cut::Request, 89), (Cut::Answer, 79)] {
        on.wire.cut_next(cut);
        let lease = on.acquire().await;
        assert_eq!((lease.cost().attempts, on.left().await), (2, left), "{cut:?}");
    }
    let lease = on.acquire().await;
    for (cut, left) in [(Cut::Request, 64), (Cut::Answer, 59)] {
        on.wire.cut_next(cut);
        lease.adjust("l", 5).await.unwrap();
        assert_eq!(on.left().await, left, "{cut:?}");
    }
    // The bucket still has the id.
    on.wire.cut_next(Cut::Answer);
    lease.release().await.unwrap();
    assert_eq!(on.left().await, 79);
    assert_eq!(on.limiter.counters().ambiguous.get(), 1, "the ring was full and lacked a debit");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_refund_that_may_have_been_made_is_not_made_again() {
    let on = disturbed().await;
    let few = on.acquire().await;
    on.wire.cut_next(Cut::Request);
    few.release().await.unwrap();
    assert_eq!(on.left().await, 99, "with less than four ids the bucket can tell");
    assert_eq!(on.limiter.counters().ambiguous.get(), 1, "the lost attempt may still come");

    let lease = on.acquire().await;
    on.acquire().await;
    on.wire.cut_next(Cut::Request);
    let error = lease.adjust("l", -10).await.unwrap_err();
    assert!(matches!(error, AdjustError::Ambiguous(_)), "{error:?}");
    assert_eq!((on.left().await, on.limiter.counters().ambiguous.get()), (79, 2));

    // An expired bucket may have had it.
    let lease = on.acquire().await;
    on.wire.cut_next(Cut::Request);
    on.server.send::<i64>(cmd("DEL").arg(KEY)).await;
    let error = lease.release().await.unwrap_err();
    assert!(matches!(error, AdjustError::Ambiguous(_)), "{error:?}");
}

/// A correction that changed nothing can be made later, under the same key.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_correction_of_a_limit_that_the_bucket_lacks_leaves_no_mark() {
    let on = disturbed().await;
    let limits = [Limit::quota("l", 100), Limit::quota("m", 100)];
    let correct = || {
        let correction = on.limiter.adjust("u", "r").by("m", 5).limits(limits.clone());
        correction.no_cascade().once("key", at(T0 + 60_000))
    };
    assert_eq!(correct().await.unwrap().dropped.len(), 1);
    on.limiter.acquire("u", "r").consume("m", 1).limits(limits.clone()).await.unwrap();
    for already_made in [false, true] {
        assert_eq!(correct().await.unwrap().already_made, already_made);
    }
    assert_eq!(field::<i64>(&on.server, KEY, "tokens:m").await, 94_000);
}

/// The answer that was lost named the missing limit. The repetition must, too: a caller that
/// believes that the limit was corrected gives back later what was never taken.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_repeated_correction_names_the_limits_that_the_bucket_lacks() {
    let on = disturbed().await;
    let limits = [Limit::quota("l", 100), Limit::quota("m", 100)];
    let correct = || {
        let correction = on.limiter.adjust("u", "r").by("l", 5).by("m", 5).limits(limits.clone());
        correction.no_cascade().once("key", at(T0 + 60_000))
    };
    for already_made in [false, true] {
        let corrected = correct().await.unwrap();
        assert_eq!(corrected.already_made, already_made);
        assert_eq!(corrected.dropped.len(), 1, "already made: {already_made}");
    }
    assert_eq!(on.left().await, 94);
}

/// A silent server answers no refund either.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn refunds_that_are_not_answered_are_an_outage() {
    let on = disturbed().await;
    let store = RedisStore::new(format!("redis://{}/", on.wire.address())).unwrap();
    let limiter = Limiter::builder(store)
        .deadline(Duration::from_millis(100))
        .on_unavailable(OnUnavailable::Deny)
        .build();
    let mut permits = Vec::new();
    for _ in 0..6 {
        permits.push(limiter.acquire("u", "r").consume("l", 1).limits(limits()).await.unwrap());
    }
    on.wire.silence();
    let last = permits.pop().unwrap();
    for permit in permits {
        let error = permit.release().await.unwrap_err();
        assert!(matches!(error, AdjustError::Ambiguous(_)), "{error:?}");
    }
    assert_eq!(limiter.counters().outages.get(), 1);
    let error = last.release().await.unwrap_err();
    assert!(matches!(error, AdjustError::Unavailable(_)), "it was not sent: {error:?}");
}

/// The server, or something between, closes connections that nobody uses. That is noticed before
/// the next call, which would be in doubt otherwise.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_refund_after_a_pause_is_made() {
    let server = RedisServer::start().await;
    let limiter = on(RedisStore::new(server.url()).unwrap(), &TestClock::at(at(T0)));
    let acquire = || limiter.acquire("u", "r").consume("l", 10).limits(limits()).into_future();
    let permit = acquire().await.unwrap();
    for _ in 0..4 {
        acquire().await.unwrap();
    }
    server.send::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal")).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    permit.release().await.unwrap();
    assert_eq!(field::<i64>(&server, KEY, "tokens:l").await, 60_000);
}

/// The server refuses connections: no byte of a refund was sent, so it can be made later.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_refund_that_no_server_took_can_be_repeated() {
    let mut server = RedisServer::start().await;
    let store = RedisStore::new(server.url()).unwrap();
    let limiter = Limiter::builder(store)
        .deadline(Duration::from_millis(300))
        .on_unavailable(OnUnavailable::Deny)
        .breaker(BreakerConfig::never())
        .build();
    let acquire = || limiter.acquire("u", "r").consume("l", 10).limits(limits()).into_future();
    let permits = [acquire().await.unwrap(), acquire().await.unwrap(), acquire().await.unwrap()];
    server.kill();
    // By now the process knows that the connection is closed.
    acquire().await.unwrap_err();
    for permit in permits {
        let error = permit.release().await.unwrap_err();
        assert!(error.may_be_repeated(), "{error:?}");
    }
}
