//! Invalid requests are refused before anything is sent.

use std::sync::Arc;
use std::time::Duration;

use sluicegate::error::InvalidRequest;
use sluicegate::types::LIMITS_MAX;
use sluicegate::{AcquireError, AdjustError, Limit, Limiter, TestClock};
use sluicegate_testkit::{RedisServer, RunningEngine, engines_under_test};

use crate::support::{Redis, T0, at, limiter, proxied};

fn invalid<T: std::fmt::Debug>(result: Result<T, AcquireError>) -> InvalidRequest {
    match result {
        Err(AcquireError::InvalidRequest(invalid)) => invalid,
        other => panic!("{other:?}"),
    }
}

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 60)]
}

fn many(count: usize) -> Vec<Limit> {
    (0..count).map(|n| Limit::per_minute(format!("l{n}"), 1)).collect()
}

/// `sent` returns the number of requests since its last call.
async fn refused_before_anything_is_sent(limiter: Limiter, sent: impl AsyncFn() -> u64) {
    let ask = |entity: &str, resource: &str| limiter.acquire(entity, resource);

    for milli in [0, -1, -1_000, i64::MIN, i64::MAX] {
        let refused = invalid(ask("u", "r").consume_milli("rpm", milli).limits(rpm()).await);
        assert!(matches!(&refused, InvalidRequest::Amount { milli: m, .. } if *m == milli.into()));
    }
    for tokens in [0, -5, i64::MIN, i64::MAX, 1_000_000_000_000_001] {
        let refused = invalid(ask("u", "r").consume("rpm", tokens).limits(rpm()).await);
        assert!(refused.to_string().starts_with("rpm="), "{refused}");
    }
    let long = ["x".repeat(65), "x".repeat(257), "x".repeat(129)];
    for limit in ["", "a b", "a#b", "a/b", "ä", "a:b", long[0].as_str()] {
        let refused = invalid(ask("u", "r").consume(limit, 1).limits(rpm()).await);
        assert!(matches!(refused, InvalidRequest::LimitName(_)), "{limit:?}: {refused}");
        let unnamed = [Limit::per_minute(limit, 1)];
        let refused = invalid(ask("u", "r").consume("rpm", 1).limits(unnamed).await);
        assert!(matches!(refused, InvalidRequest::Limit(_)), "{limit:?}: {refused}");
    }
    for id in ["", "a#b", "#", "a\nb", "a\0", long[1].as_str()] {
        let refused = invalid(ask(id, "r").consume("rpm", 1).limits(rpm()).await);
        assert!(matches!(refused, InvalidRequest::Name(_)), "{id:?}: {refused}");
        let cascade = ask("u", "r").consume("rpm", 1).limits(rpm()).cascade_to(id);
        assert!(matches!(invalid(cascade.await), InvalidRequest::Name(_)), "{id:?}");
        invalid(limiter.peek(id, "r").limits(rpm()).await);
    }
    for resource in ["", "a#b", "a\tb", long[2].as_str()] {
        let refused = invalid(ask("u", resource).consume("rpm", 1).limits(rpm()).await);
        assert!(matches!(refused, InvalidRequest::Name(_)), "{resource:?}: {refused}");
    }
    for limit in [
        Limit::every("rpm", 1, Duration::ZERO),
        Limit::every("rpm", 1, Duration::from_micros(1_500)),
        Limit::every("rpm", 1, Duration::MAX),
        Limit::per_minute("rpm", 0),
        Limit::per_minute("rpm", u64::MAX),
        Limit::per_minute("rpm", 1).burst(0),
        Limit::quota("rpm", 0),
    ] {
        let refused = invalid(ask("u", "r").consume("rpm", 1).limits([limit.clone()]).await);
        assert!(matches!(refused, InvalidRequest::Limit(_)), "{refused}");
        let parent = ask("u", "r").consume("rpm", 1).limits(rpm()).parent_limits([limit]);
        assert!(matches!(invalid(parent.cascade_to("p").await), InvalidRequest::Limit(_)));
    }
    let twice = ask("u", "r").consume("rpm", 1).consume("rpm", 2).limits(rpm());
    assert!(matches!(invalid(twice.await), InvalidRequest::DuplicateLimit(_)));
    let twice = ask("u", "r").consume("rpm", 1).limits(rpm()).limits(rpm());
    assert!(matches!(invalid(twice.await), InvalidRequest::DuplicateLimit(_)));
    let all = ask("u", "r").consume("l0", 1).limits(many(LIMITS_MAX + 1));
    assert!(matches!(invalid(all.await), InvalidRequest::TooManyLimits { count: 41, max: 40 }));
    let all = (0..=LIMITS_MAX).fold(ask("u", "r"), |ask, n| ask.consume(format!("l{n}"), 1));
    assert!(matches!(invalid(all.await), InvalidRequest::TooManyLimits { count: 41, max: 40 }));
    let own = ask("u", "r").consume("rpm", 1).limits(rpm()).cascade_to("u");
    assert!(matches!(invalid(own.await), InvalidRequest::OwnParent(_)));
    assert_eq!(invalid(ask("u", "r").limits(rpm()).await), InvalidRequest::Empty);
    assert_eq!(invalid(ask("u", "r").await), InvalidRequest::Empty);
    assert_eq!(sent().await, 0);

    // All that is allowed, at once.
    let all = (0..LIMITS_MAX).fold(ask("u", "r"), |ask, n| ask.consume(format!("l{n}"), 1));
    let permit = all.limits(many(LIMITS_MAX)).no_cascade().await.unwrap();
    assert_ne!(sent().await, 0);
    for by in [i64::MIN, i64::MAX, 1_000_000_000_000_001] {
        let error = permit.adjust("l0", by).await.unwrap_err();
        let AdjustError::InvalidRequest(InvalidRequest::Amount { .. }) = error else {
            panic!("{error:?}")
        };
    }
    let error = permit.adjust("a#b", 1).await.unwrap_err();
    let AdjustError::InvalidRequest(InvalidRequest::LimitName(_)) = error else {
        panic!("{error:?}")
    };
    permit.adjust("l0", 0).await.unwrap();
    assert_eq!(sent().await, 0);
    // The most that an expression has to hold: every limit claimed, taken and corrected.
    permit.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_for_what_makes_no_sense() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let (proxy, table) = proxied(&engine).await;
        let limiter = limiter(table, &TestClock::at(at(T0)));
        let sent = async || {
            let count = proxy.received_by_operation().values().sum();
            proxy.reset_counts();
            count
        };
        refused_before_anything_is_sent(limiter, sent).await;
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn no_script_runs_for_what_makes_no_sense() {
    let server = Arc::new(RedisServer::start().await);
    let limiter = limiter(Redis(server.clone()), &TestClock::at(at(T0)));
    let sent = async || {
        let stats: String = server.send(redis::cmd("INFO").arg("commandstats")).await;
        server.send::<()>(redis::cmd("CONFIG").arg("RESETSTAT")).await;
        let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_eval"));
        calls.map(|_| 1).sum()
    };
    refused_before_anything_is_sent(limiter, sent).await;
}
