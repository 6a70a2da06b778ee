//! The stored keys and values, and their expiry.

use std::time::Duration;

use redis::cmd;
use sluicegate::redis::RedisStore;
use sluicegate::types::LimitsScope;
use sluicegate::{Limit, TestClock};
use sluicegate_testkit::RedisServer;

use super::{T0, at, field, limiter, on, shown};

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn show_prints_a_bucket_and_a_limit_keeps_its_amounts_among_others() {
    let server = RedisServer::start().await;
    let limiter = limiter(&server, &TestClock::at(at(T0)));
    let (rpm, tpm) = (Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 1_000).burst(1_500));
    let ask = || limiter.acquire("user-123", "gpt-4").consume("rpm", 3);
    let key = "sluicegate:{user-123}#gpt-4";
    assert!(shown(&server, key).await.is_empty());
    ask().limits([rpm.clone()]).await.unwrap();
    let alone = shown(&server, key).await;
    let fields: Vec<_> = alone.iter().filter(|(field, _)| *field != "ids").collect();
    let expected = [
        ("lastRefill", T0.to_string()),
        ("leases", String::new()),
        ("rule:rpm", "100000 100000 100000 60000".to_owned()),
        ("tc:rpm", "3000".to_owned()),
        ("tokens:rpm", "97000".to_owned()),
    ];
    assert!(fields.iter().map(|(f, v)| (f.as_str(), v.to_string())).eq(expected), "{alone:?}");

    ask().limits([rpm, tpm]).await.unwrap();
    let both = shown(&server, key).await;
    let of = |field: &str| both[field].as_str();
    assert_eq!((of("tokens:rpm"), of("tc:rpm")), ("94000", "6000"));
    assert_eq!((of("tokens:tpm"), of("tc:tpm")), ("1500000", "0"));
    assert_eq!(of("ids").split_whitespace().count(), 2);
    let consumed: Vec<_> =
        limiter.peek("user-123", "gpt-4").await.unwrap().iter().map(|s| s.consumed.get()).collect();
    assert_eq!(consumed, [6_000, 0]);
}

/// The part of a counter that a double cannot hold is carried.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn counters_are_exact_beyond_what_a_double_holds() {
    let server = RedisServer::start().await;
    let limiter = limiter(&server, &TestClock::at(at(T0)));
    let limits = || [Limit::quota("q", 1_000_000_000_000)];
    let adjust = |milli| limiter.adjust("u", "r").by_milli("q", milli).limits(limits());
    let ask = |milli| limiter.acquire("u", "r").consume_milli("q", milli).limits(limits());
    let counter = async || field::<i64>(&server, "sluicegate:{u}#r", "tc:q").await;
    let most = 1_000_000_000_000_000;
    for (asked, sum) in [(most - 3, most - 3), (1, most - 2), (2, most)] {
        ask(asked).await.unwrap();
        assert_eq!(counter().await, sum);
    }
    let mut sum = most;
    for n in 1..=12 {
        adjust(most).await.unwrap();
        adjust(-n).await.unwrap();
        sum += most - n;
        assert_eq!(counter().await, sum);
    }
    assert!(sum > 1 << 53);
    for _ in 0..30 {
        adjust(-most).await.unwrap();
        sum -= most;
    }
    for _ in 0..3 {
        ask(7).await.unwrap();
        sum += 7;
    }
    assert_eq!(counter().await, sum);
    assert!(sum < -(1 << 53));
    let peeked = limiter.peek("u", "r").await.unwrap();
    assert_eq!(peeked[0].consumed.get(), i128::from(sum));
}

/// Seconds until a key expires; `None`: it does not.
async fn expires_in(server: &RedisServer, key: &str) -> Option<u64> {
    let millis: i64 = server.send(cmd("PTTL").arg(key)).await;
    u64::try_from(millis).ok().map(|millis| millis.div_ceil(1_000))
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_bucket_expires_twice_the_time_that_its_slowest_limit_needs_to_fill() {
    let server = RedisServer::start().await;
    let limiter = limiter(&server, &TestClock::at(at(T0)));
    let ask =
        |entity: &'static str, limit| limiter.acquire(entity, "r").consume("l", 1).limits([limit]);
    // Within the seconds that a busy machine may take.
    let assert_about = |left: Option<u64>, seconds: u64| {
        let left = left.unwrap();
        assert!(left <= seconds && left + 30 > seconds, "{left} of {seconds}");
    };
    let lease = ask("a", Limit::per_minute("l", 100)).await.unwrap();
    assert_about(expires_in(&server, "sluicegate:{a}#r").await, 120);
    // Three bursts of debt take three times as long.
    lease.adjust("l", 399).await.unwrap();
    assert_about(expires_in(&server, "sluicegate:{a}#r").await, 480);
    lease.adjust("l", -399).await.unwrap();
    assert_about(expires_in(&server, "sluicegate:{a}#r").await, 120);

    // 7 in 90 s, 10 at once: ceil(10 / (7 / 90)) = 129.
    let odd = Limit::every("l", 7, Duration::from_secs(90)).burst(10);
    ask("b", odd).await.unwrap();
    assert_about(expires_in(&server, "sluicegate:{b}#r").await, 258);

    // The slowest of several; and one that never fills.
    let day = Limit::per_day("day", 5);
    let limits = [Limit::per_second("l", 5), day];
    ask("c", Limit::per_second("l", 5)).await.unwrap();
    limiter.acquire("c", "r").consume("l", 1).limits(limits).await.unwrap();
    assert_about(expires_in(&server, "sluicegate:{c}#r").await, 2 * 86_400);
    limiter.adjust("c", "r").by("day", 1).limits([Limit::quota("q", 1)]).await.unwrap();
    assert_about(expires_in(&server, "sluicegate:{c}#r").await, 2 * (86_400));
    limiter.acquire("c", "r").consume("q", 1).limits([Limit::quota("q", 1)]).await.unwrap();
    assert_eq!(expires_in(&server, "sluicegate:{c}#r").await, None);

    // A refusal writes nothing and keeps nothing alive.
    ask("d", Limit::per_second("l", 1)).await.unwrap();
    server.send::<i64>(cmd("PEXPIRE").arg("sluicegate:{d}#r").arg(60_000)).await;
    ask("d", Limit::per_second("l", 1)).await.unwrap_err();
    assert_about(expires_in(&server, "sluicegate:{d}#r").await, 60);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn the_last_four_requests_are_remembered() {
    let server = RedisServer::start().await;
    let limiter = limiter(&server, &TestClock::at(at(T0)));
    let mut seen = Vec::new();
    for _ in 0..6 {
        limiter.acquire("u", "r").consume("l", 1).limits([Limit::quota("l", 9)]).await.unwrap();
        let ids: String = field(&server, "sluicegate:{u}#r", "ids").await;
        let ids: Vec<_> = ids.split_whitespace().map(str::to_owned).collect();
        seen.insert(0, ids[0].clone());
        assert_eq!(ids, seen[..seen.len().min(4)]);
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn limits_and_parents_can_be_said_once() {
    let server = RedisServer::start().await;
    let system = [Limit::per_minute("rpm", 10), Limit::per_minute("tpm", 100)];
    let store = RedisStore::new(server.url())
        .unwrap()
        .prefix("app:")
        .limits(LimitsScope::System, system)
        .unwrap()
        .limits(LimitsScope::Entity(super::entity("vip")), [Limit::per_minute("rpm", 99)])
        .unwrap()
        .parents(|id| (id.as_str() != "team").then(|| super::entity("team")));
    let limiter = on(store, &TestClock::at(at(T0)));
    limiter.acquire("vip", "r").consume("rpm", 8).await.unwrap();
    let tokens = async |key| field::<i64>(&server, key, "tokens:rpm").await;
    assert_eq!(tokens("app:{team}vip#r").await, 91_000);
    assert_eq!(tokens("app:{team}#r").await, 2_000, "the parent is the system's");
    limiter.acquire("other", "r").consume("rpm", 3).await.unwrap_err();
    limiter.acquire("other", "r").consume("rpm", 3).no_cascade().await.unwrap();
    assert_eq!(tokens("app:{team}other#r").await, 7_000);
}
