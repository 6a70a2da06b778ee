//! Leased tokens on a server that is far away, and on a cluster.

use std::time::Duration;

use redis::cmd;
use sluicegate::leasing::Accounting;
use sluicegate::redis::RedisStore;
use sluicegate::{
    AcquireError, AcquireRequest, LeaseMode, LeaseSettings, Limit, Limiter, TestClock,
};
use sluicegate_testkit::{Cut, RedisCluster, RedisServer, Wire};

use super::{T0, at, builder, entity, field};

const KEY: &str = "sluicegate:{u}#r";
const DEADLINE: Duration = Duration::from_secs(20);

fn leased(store: RedisStore, accounting: Accounting) -> (Limiter, TestClock) {
    let (mode, clock) = (LeaseMode::Strict(accounting), TestClock::at(at(T0)));
    let settings = LeaseSettings { mode, deadline: DEADLINE, ..LeaseSettings::default() };
    (builder(store, &clock).leasing(settings).build(), clock)
}

fn request(limiter: &Limiter) -> AcquireRequest<&Limiter> {
    let limits = [Limit::quota("l", 10_000)];
    limiter.acquire("u", "r").consume("l", 1).limits(limits).no_cascade()
}

async fn ask(limiter: &Limiter) -> Result<(), AcquireError> {
    request(limiter).await.map(drop)
}

/// The balance and the consumption.
async fn stand(server: &RedisServer) -> (i64, i64) {
    let number = |name| async move { field::<i64>(server, KEY, name).await / 1_000 };
    (number("tokens:l").await, number("tc:l").await)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn lost_lease_is_made_and_settled_once() {
    for accounting in [Accounting::AtLease, Accounting::AtSettle] {
        let server = RedisServer::start().await;
        let wire = Wire::start(server.address()).await;
        let store = RedisStore::new(format!("redis://{}/", wire.address())).unwrap();
        let (limiter, clock) = leased(store, accounting);
        let mut admitted = 0;
        for round in 0..40 {
            if round > 0 {
                wire.cut_next(if round % 2 == 0 { Cut::Request } else { Cut::Answer });
            }
            // The held tokens are too old: a write settles them and leases more.
            clock.advance(Duration::from_millis(1_001));
            for _ in 0..20 {
                ask(&limiter).await.unwrap();
                admitted += 1;
                clock.advance(Duration::from_millis(1));
            }
        }
        let report = limiter.shutdown(DEADLINE).await;
        assert!(report.unsettled.is_empty(), "{report:?}");
        assert_eq!(stand(&server).await, (10_000 - admitted, admitted), "{accounting:?}");
        // One repeated lease returned more than it took, so it counts. The bucket still remembers
        // the write before each of the others.
        assert_eq!(limiter.counters().ambiguous.get(), 1, "{accounting:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_lease_that_nobody_waited_for_is_found_by_the_next() {
    let server = RedisServer::start().await;
    let (limiter, clock) = leased(RedisStore::new(server.url()).unwrap(), Accounting::AtLease);
    let mut admitted = 0;
    for _ in 0..6 {
        for _ in 0..20 {
            ask(&limiter).await.unwrap();
            admitted += 1;
            clock.advance(Duration::from_millis(1));
        }
        clock.advance(Duration::from_millis(1_001));
        server.send::<()>(cmd("CLIENT").arg("PAUSE").arg(400)).await;
        // The request is at the server, which executes it later.
        let error = request(&limiter).deadline(Duration::from_millis(100)).await.unwrap_err();
        assert!(matches!(error, AcquireError::Unavailable(_)), "{error:?}");
    }
    let report = limiter.shutdown(DEADLINE).await;
    assert!(report.unsettled.is_empty(), "{report:?}");
    assert_eq!(stand(&server).await, (10_000 - admitted, admitted));
    assert_eq!(limiter.counters().ambiguous.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_cluster_leases_of_a_child_and_of_its_parent() {
    let cluster = RedisCluster::start().await;
    let store = RedisStore::cluster(cluster.urls()).unwrap().parents(|id| {
        let (team, _) = id.as_str().split_once('/')?;
        Some(entity(team))
    });
    let (limiter, clock) = leased(store, Accounting::AtLease);
    for n in 0..6 {
        let limits = [Limit::quota("rpm", 60), Limit::per_day("tpm", 100_000)];
        let ask = |user: &str| {
            let request = limiter.acquire(format!("team-{n}/{user}"), "r").consume("rpm", 1);
            request.consume("tpm", 100).limits(limits.clone())
        };
        for user in ["a", "b"] {
            for _ in 0..30 {
                ask(user).await.unwrap();
                clock.advance(Duration::from_millis(1));
            }
        }
        // The team has no more; its members have.
        limiter.flush(DEADLINE).await;
        let refused = ask("a").await.unwrap_err();
        let AcquireError::LimitExceeded(refused) = refused else { panic!("{refused:?}") };
        let short: Vec<_> = refused.violations().map(|limit| limit.entity.to_string()).collect();
        assert_eq!(short, [format!("team-{n}")]);
    }
    let writes = limiter.leased().unwrap().writes();
    assert!(writes < 6 * 60, "{writes} writes");
    let report = limiter.shutdown(DEADLINE).await;
    assert!(report.unsettled.is_empty(), "{report:?}");
    for n in 0..6 {
        let stands = limiter.peek(format!("team-{n}/a"), "r").await.unwrap();
        let consumed: Vec<_> = stands.iter().map(|limit| limit.consumed.get() / 1_000).collect();
        assert_eq!(consumed, [30, 3_000, 60, 6_000]);
    }
}

/// An attempt that was answered with `BUSY` did nothing. So a lease that is refused after it is not
/// in doubt, and what it would have returned is still held.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_lease_that_was_refused_after_busy_is_not_in_doubt() {
    let server = RedisServer::start().await;
    let (limiter, clock) = leased(RedisStore::new(server.url()).unwrap(), Accounting::AtLease);
    let other = builder(RedisStore::new(server.url()).unwrap(), &clock).build();
    let mut admitted = 0;
    for _ in 0..100 {
        ask(&limiter).await.unwrap();
        admitted += 1;
        clock.advance(Duration::from_millis(1));
    }
    let too_much = limiter.acquire("u", "r").consume("l", 9_950);
    let too_much = too_much.limits([Limit::quota("l", 10_000)]).no_cascade();
    let mut too_much = std::pin::pin!(too_much.into_future());
    let answer = tokio::time::timeout(Duration::from_millis(100), &mut too_much);
    assert!(server.while_busy(answer).await.is_err());
    let refused = too_much.await.unwrap_err();
    assert!(matches!(refused, AcquireError::LimitExceeded(_)), "{refused:?}");
    // The bucket forgets the id of the lease.
    for _ in 0..4 {
        ask(&other).await.unwrap();
        admitted += 1;
    }
    let report = limiter.shutdown(DEADLINE).await;
    assert!(report.unsettled.is_empty(), "{report:?}");
    assert_eq!(stand(&server).await, (10_000 - admitted, admitted));
}
