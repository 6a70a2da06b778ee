//! Requests while the server changes: restarts, failures, other clocks.

use std::time::Duration;

use redis::cmd;
use sluicegate::error::{InvalidRequest, SetupError};
use sluicegate::redis::{RedisStore, TimeSource};
use sluicegate::settings::BreakerConfig;
use sluicegate::{
    AcquireError, AdjustError, Clock as _, LeaseMode, LeaseSettings, Limit, Limiter, OnUnavailable,
    SystemClock, TestClock,
};
use sluicegate_testkit::RedisServer;

use super::{T0, at, builder, field, limiter, on};

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 60)]
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_server_that_forgot_the_scripts_gets_them_again() {
    let server = RedisServer::start().await;
    let limiter = limiter(&server, &TestClock::at(at(T0)));
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits(rpm());
    let lease = ask().await.unwrap();
    server.send::<()>(cmd("SCRIPT").arg("FLUSH")).await;
    assert_eq!(ask().await.unwrap().cost().attempts, 1);
    server.send::<()>(cmd("SCRIPT").arg("FLUSH")).await;
    lease.release().await.unwrap();
    server.send::<()>(cmd("SCRIPT").arg("FLUSH")).await;
    let left = limiter.peek("u", "r").await.unwrap();
    assert_eq!(left[0].available.get(), 59_000);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn key_of_another_kind_must_be_repaired() {
    let server = RedisServer::start().await;
    let limiter = limiter(&server, &TestClock::at(at(T0)));
    let refused = async |entity: &str| {
        let error = limiter.acquire(entity, "r").consume("rpm", 1).limits(rpm()).await.unwrap_err();
        let AcquireError::Setup(SetupError::BrokenItem { bucket, source }) = error else {
            panic!("{error:?}")
        };
        format!("{bucket}: {source}")
    };
    server.send::<()>(cmd("SET").arg("sluicegate:{a}#r").arg(1)).await;
    let what = "the value of the item is not what a bucket has there";
    assert_eq!(refused("a").await, format!("sluicegate:{{a}}#r: {what}"));
    let error = limiter.peek("a", "r").limits(rpm()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Setup(SetupError::BrokenItem { .. })), "{error:?}");
    server.send::<()>(cmd("HSET").arg("sluicegate:{b}#r").arg("lastRefill").arg(1)).await;
    assert_eq!(refused("b").await, "this name: the value of the item is not a string");
    let denied = cmd("ACL").arg("SETUSER").arg("default").arg("-evalsha").take();
    server.send::<()>(&denied).await;
    let error = limiter.acquire("c", "r").consume("rpm", 1).limits(rpm()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Setup(SetupError::Denied(_))), "{error:?}");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn the_servers_time_counts_where_it_is_asked_for() {
    let server = RedisServer::start().await;
    // A clock that stands still, in another year.
    let store = RedisStore::new(server.url()).unwrap().time(TimeSource::Server);
    let limiter = on(store, &TestClock::at(at(T0)));
    let before = SystemClock.now().get();
    let limits = [Limit::per_second("rps", 1_000)];
    limiter.acquire("u", "r").consume("rps", 1_000).limits(limits.clone()).await.unwrap();
    let last: i64 = field(&server, "sluicegate:{u}#r", "lastRefill").await;
    assert!((before..=SystemClock.now().get()).contains(&last), "{last} after {before}");
    tokio::time::sleep(Duration::from_millis(20)).await;
    limiter.acquire("u", "r").consume("rps", 1).limits(limits).await.unwrap();
    let later: i64 = field(&server, "sluicegate:{u}#r", "lastRefill").await;
    assert!((last + 20..=SystemClock.now().get()).contains(&later), "{later} after {last}");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_refill_time_far_ahead_is_pulled_back_and_counted() {
    let server = RedisServer::start().await;
    let clock = TestClock::at(at(T0));
    let limiter = limiter(&server, &clock);
    let ask = |n| limiter.acquire("u", "r").consume("rpm", n).limits(rpm());
    ask(60).await.unwrap();
    let last = async || field::<i64>(&server, "sluicegate:{u}#r", "lastRefill").await;
    clock.set(at(T0 - 60_000));
    ask(1).await.unwrap_err();
    assert_eq!((last().await, limiter.counters().clocks_ahead.get()), (T0, 0), "never back");
    clock.set(at(T0 - 60_001));
    let AcquireError::LimitExceeded(refused) = ask(1).await.unwrap_err() else { panic!() };
    assert_eq!(refused.retry_after, Some(Duration::from_secs(1)));
    assert_eq!((last().await, limiter.counters().clocks_ahead.get()), (T0 - 60_001, 1));
    clock.advance(Duration::from_secs(1));
    ask(1).await.unwrap();
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_server_that_is_away_is_unavailable_and_nothing_else() {
    let mut server = RedisServer::start().await;
    let clock = TestClock::at(at(T0));
    let limiter = builder(RedisStore::new(server.url()).unwrap(), &clock)
        .deadline(Duration::from_millis(200))
        .build();
    let lease = limiter.acquire("u", "r").consume("rpm", 1).limits(rpm()).await.unwrap();
    server.kill();
    let error = limiter.acquire("u", "r").consume("rpm", 1).limits(rpm()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)), "{error:?}");
    let error = limiter.peek("u", "r").limits(rpm()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)), "{error:?}");
    let error = lease.adjust("rpm", 1).await.unwrap_err();
    assert!(matches!(error, AdjustError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn amounts_beyond_a_script_are_refused_before_a_call() {
    // There is no server at this address.
    let store = RedisStore::new("redis://127.0.0.1:1/").unwrap();
    let limiter = on(store, &TestClock::at(at(T0)));
    let trillion = 1_000_000_000_000;
    // A prime, so that there are no lower terms: 9 x 1,000 times it is below 2^53.
    let period = Duration::from_millis(999_999_999_989);
    for limit in [
        Limit::every("l", 10, period),
        Limit::per_second("l", 1).burst(trillion + 1),
        Limit::quota("l", trillion + 1),
    ] {
        let asked = limiter.acquire("u", "r").consume("l", 1).limits([limit.clone()]);
        let error = asked.await.unwrap_err();
        let AcquireError::InvalidRequest(InvalidRequest::BeyondStore { limit: of, .. }) = &error
        else {
            panic!("{limit:?}: {error:?}")
        };
        assert_eq!(of.as_str(), "l");
        assert!(error.to_string().contains("this store counts exactly up to"), "{error}");
    }
    let within = limiter.acquire("u", "r").consume("l", 1).limits([Limit::every("l", 9, period)]);
    let within = within.deadline(Duration::from_millis(100));
    let error = within.await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)), "{error:?}");
    let asked = limiter.acquire("u", "r").consume("l", 1_000_000_000_001).limits(rpm());
    let error = asked.await.unwrap_err();
    assert!(matches!(error, AcquireError::InvalidRequest(InvalidRequest::BeyondStore { .. })));
}

/// A program may make its store before it makes its runtime.
#[test]
fn a_store_is_made_outside_of_a_runtime() {
    assert!(RedisStore::new("redis://127.0.0.1:1/").is_ok());
    assert!(RedisStore::cluster(["redis://127.0.0.1:1/"]).is_ok());
    assert!(RedisStore::new("no url").is_err());
    assert!(RedisStore::cluster(["no url"]).is_err());
}

/// A server that may not write, since it has too few replicas, counts as failed.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_server_without_its_replicas_is_away() {
    let server = RedisServer::start().await;
    let clock = TestClock::at(at(T0));
    let limiter = builder(RedisStore::new(server.url()).unwrap(), &clock)
        .deadline(Duration::from_millis(200))
        .build();
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits(rpm());
    let lease = ask().await.unwrap();
    let replicas =
        |number: u32| cmd("CONFIG").arg("SET").arg("min-replicas-to-write").arg(number).take();
    server.send::<()>(&replicas(1)).await;
    let error = ask().await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)), "{error:?}");
    let error = lease.adjust("rpm", -1).await.unwrap_err();
    assert!(matches!(error, AdjustError::Unavailable(_)), "nothing was given back: {error:?}");
    server.send::<()>(&replicas(0)).await;
    lease.release().await.unwrap();
}

/// No server is asked, so the error is no answer of one.
#[tokio::test]
async fn a_request_that_no_script_can_count_says_nothing_of_the_server() {
    let store = RedisStore::new("redis://127.0.0.1:1/").unwrap();
    let deadline = Duration::from_millis(50);
    let limiter = Limiter::builder(store)
        .connect_deadline(deadline)
        .deadline(deadline)
        .on_unavailable(OnUnavailable::Deny)
        .breaker(BreakerConfig { failures: 3, ..BreakerConfig::default() })
        .build();
    for _ in 0..3 {
        let error = limiter.acquire("u", "r").consume("rpm", 1).limits(rpm()).await.unwrap_err();
        assert!(matches!(error, AcquireError::Unavailable(_)), "{error:?}");
        let beyond = limiter.acquire("u", "r").consume("rpm", 1_000_000_000_001).limits(rpm());
        _ = beyond.await.unwrap_err();
    }
    assert_eq!(limiter.counters().outages.get(), 1);
}

/// A request without a parent does not change the stored parent.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_process_without_its_server_knows_whose_parent_was_asked() {
    let mut server = RedisServer::start().await;
    let store = RedisStore::new(server.url()).unwrap();
    let store = store.parents(|id| (id.as_str() == "child").then(|| super::entity("parent")));
    let clock = TestClock::at(at(T0));
    let limiter = builder(store, &clock)
        .deadline(Duration::from_millis(200))
        .on_unavailable(OnUnavailable::Local)
        .build();
    let ask = |tokens| {
        let parent = [Limit::quota("q", 10)];
        let request = limiter.acquire("child", "r").consume("q", tokens).parent_limits(parent);
        request.limits([Limit::quota("q", 100)])
    };
    ask(1).deadline(Duration::from_secs(20)).await.unwrap();
    ask(1).no_cascade().deadline(Duration::from_secs(20)).await.unwrap();
    server.kill();
    assert!(ask(9).await.unwrap().degraded().is_some());
    let AcquireError::LimitExceeded(refused) = ask(1).await.unwrap_err() else { panic!() };
    let short: Vec<_> = refused.violations().map(|limit| limit.entity.as_str()).collect();
    assert_eq!(short, ["parent"]);
}

/// The clock of this process is ten minutes ahead of the server's, by which the bucket is refilled.
/// If the process decides without a call, it must not count those ten minutes as refill.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn without_a_call_the_time_is_the_servers_too() {
    let ahead = at(SystemClock.now().get() + 600_000);
    let limits = || [Limit::per_minute("rpm", 60).burst(100)];
    let ask = async |limiter: &Limiter, entity: &str, tokens| {
        let request = limiter.acquire(entity, "r").consume("rpm", tokens).limits(limits());
        request.no_cascade().await.map(drop)
    };
    let mut server = RedisServer::start().await;
    let store = || RedisStore::new(server.url()).unwrap().time(TimeSource::Server);
    let clock = TestClock::at(ahead);
    let mode = LeaseMode::WriteBehind { threshold: 20 };
    let leased = builder(store(), &clock).leasing(LeaseSettings { mode, ..Default::default() });
    let leased = leased.build();
    let mut admitted = 0;
    for _ in 0..400 {
        admitted += u32::from(ask(&leased, "leased", 1).await.is_ok());
    }
    assert!((100..=125).contains(&admitted), "{admitted}");

    let local = Limiter::builder(store())
        .clock(clock)
        .deadline(Duration::from_millis(100))
        .on_unavailable(OnUnavailable::Local)
        .build();
    ask(&local, "local", 90).await.unwrap();
    drop(leased);
    server.kill();
    let mut admitted = 0;
    for _ in 0..50 {
        admitted += u32::from(ask(&local, "local", 1).await.is_ok());
    }
    assert!((10..=12).contains(&admitted), "{admitted}");
}

/// The connection of a limiter lives in the runtime of its first call. If nobody runs that runtime
/// any more, calls from another one must not wait for it for ever.
#[test]
#[ignore = "needs Redis: cargo xtask test"]
fn a_connection_in_a_runtime_that_nobody_runs_is_replaced() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (parked, other) = (runtime(), runtime());
    let server = parked.block_on(RedisServer::start());
    let limiter = Limiter::builder(RedisStore::new(server.url()).unwrap())
        .deadline(Duration::from_millis(300))
        .on_unavailable(OnUnavailable::Deny)
        .build();
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits(rpm()).into_future();
    parked.block_on(ask()).unwrap();
    let answered = other.block_on(async {
        for n in 0..20 {
            if ask().await.is_ok() {
                return Some(n);
            }
        }
        None
    });
    assert!(answered.is_some_and(|failed| failed <= 2), "{answered:?}");
}

/// A server that refuses connections answers quickly, but a call has until its deadline.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_call_is_repeated_until_the_server_is_there() {
    let server = RedisServer::start().await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("redis://{}/", socket.local_addr().unwrap());
    let limiter = on(RedisStore::new(url).unwrap(), &TestClock::at(at(T0)));
    // Connections are refused at first. Later they are handed on to the server.
    let listen_later = async {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        let listener = socket.listen(16).unwrap();
        let (mut here, _) = listener.accept().await.unwrap();
        let mut there = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
    };
    let ask = limiter.acquire("u", "r").consume("rpm", 1).limits(rpm()).into_future();
    tokio::select! {
        permit = ask => drop(permit.unwrap()),
        () = listen_later => panic!("the limiter closed its connection"),
    }
}
