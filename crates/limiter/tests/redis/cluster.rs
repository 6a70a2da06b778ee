//! A cluster: an entity and its parent on one node, entities on all of them.

use std::time::Duration;

use redis::cmd;
use sluicegate::error::InvalidRequest;
use sluicegate::redis::RedisStore;
use sluicegate::settings::BreakerConfig;
use sluicegate::{AcquireError, Limit, Limiter, OnUnavailable, TestClock};
use sluicegate_testkit::RedisCluster;

use super::{T0, at, entity, on};

fn limits() -> [Limit; 2] {
    [Limit::quota("rpm", 10), Limit::per_day("tpm", 1_000)]
}

/// The team of `team-7/user-3`.
fn team(id: &sluicegate::EntityId) -> Option<sluicegate::EntityId> {
    id.as_str().split_once('/').map(|(team, _)| entity(team))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_child_and_its_parent_are_taken_from_together() {
    let cluster = RedisCluster::start().await;
    let store = RedisStore::cluster(cluster.urls()).unwrap().parents(team);
    let limiter = on(store, &TestClock::at(at(T0)));
    for n in 0..12 {
        let (team, user) = (format!("team-{n}"), format!("team-{n}/user"));
        let ask = |tokens| limiter.acquire(&user, "r").consume("rpm", tokens).limits(limits());
        let lease = ask(4).await.unwrap();
        // The same parent, by its name.
        ask(4).cascade_to(&team).await.unwrap();
        let other = limiter.acquire(&team, "r").consume("rpm", 1).limits(limits());
        other.no_cascade().await.unwrap();
        let refused = ask(2).await.unwrap_err();
        let AcquireError::LimitExceeded(refused) = refused else { panic!("{refused:?}") };
        let short: Vec<_> = refused.violations().map(|limit| limit.entity.as_str()).collect();
        assert_eq!(short, [team.as_str()], "and the child is as it was");
        lease.adjust("rpm", -1).await.unwrap();
        let left = limiter.peek(&user, "r").await.unwrap();
        let rpm = left.iter().filter(|limit| limit.limit.as_str() == "rpm");
        let rpm: Vec<_> = rpm.map(|limit| limit.available.get()).collect();
        assert_eq!(rpm, [3_000, 2_000]);
    }
    let strange = limiter.acquire("team-1/user", "r").consume("rpm", 1).limits(limits());
    let error = strange.cascade_to("team-2").await.unwrap_err();
    assert!(matches!(error, AcquireError::InvalidRequest(InvalidRequest::CrossSlot { .. })));
    let mut keys = Vec::new();
    for node in cluster.nodes() {
        let count: i64 = node.send(&cmd("DBSIZE")).await;
        keys.push(count);
    }
    assert_eq!(keys.iter().sum::<i64>(), 24);
    assert!(keys.iter().all(|count| *count > 0), "every node has some: {keys:?}");
}

/// The connections to the nodes end with the runtime that made them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_cluster_is_asked_again_in_another_runtime() {
    let cluster = RedisCluster::start().await;
    let limiter = on(RedisStore::cluster(cluster.urls()).unwrap(), &TestClock::at(at(T0)));
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits(limits()).no_cascade();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(ask().into_future()).unwrap();
        });
        first.join().unwrap();
    });
    ask().await.unwrap();
    assert_eq!(limiter.peek("u", "r").await.unwrap()[0].available.get(), 8_000);
}

/// While a slot moves, its old node answers for the keys that it has, and names the new one for
/// others. The new one may have no slot yet, so that clients do not know it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_bucket_in_a_slot_that_moves_is_made_on_the_new_node() {
    let mut cluster = RedisCluster::start().await;
    cluster.add_node().await;
    let limiter = on(RedisStore::cluster(cluster.urls()).unwrap(), &TestClock::at(at(T0)));
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits(limits()).no_cascade();
    let slot: u16 = cluster.nodes()[0].send(cmd("CLUSTER").arg("KEYSLOT").arg("u")).await;
    let old = cluster.node_of(slot);
    for new in [(old + 1) % 3, 3] {
        let nodes = [old, new].map(|node| &cluster.nodes()[node]);
        for (node, state, other) in [(1, "IMPORTING", 0), (0, "MIGRATING", 1)] {
            let id: String = nodes[other].send(cmd("CLUSTER").arg("MYID")).await;
            let set = cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(state).arg(id).take();
            nodes[node].send::<()>(&set).await;
        }
        for left in [9_000, 8_000] {
            let permit = ask().await.unwrap();
            assert_eq!(permit.remaining()[0].available.get(), left);
        }
        let keys: i64 = nodes[1].send(&cmd("DBSIZE")).await;
        assert_eq!(keys, 1);
        let stable = cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("STABLE").take();
        for node in nodes {
            node.send::<()>(&stable).await;
        }
    }
}

/// Other nodes go on naming a node that died, until they have agreed that it did. That is an outage
/// of its buckets.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_node_that_died_is_an_outage_of_its_buckets() {
    let mut cluster = RedisCluster::start().await;
    let limiter = Limiter::builder(RedisStore::cluster(cluster.urls()).unwrap())
        .deadline(Duration::from_millis(500))
        .on_unavailable(OnUnavailable::Allow)
        .breaker(BreakerConfig::never())
        .build();
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits(limits()).no_cascade();
    assert!(ask().await.unwrap().degraded().is_none());
    let slot: u16 = cluster.nodes()[0].send(cmd("CLUSTER").arg("KEYSLOT").arg("u")).await;
    cluster.kill(cluster.node_of(slot));
    for n in 0..6 {
        let permit = ask().await;
        assert!(permit.as_ref().is_ok_and(|permit| permit.degraded().is_some()), "{n}: {permit:?}");
    }
}

/// As of a single server: a connection that was closed while nobody used it is noticed at once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_refund_after_a_pause_is_made_in_a_cluster() {
    let cluster = RedisCluster::start().await;
    let limiter = on(RedisStore::cluster(cluster.urls()).unwrap(), &TestClock::at(at(T0)));
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits(limits()).no_cascade();
    let permit = ask().await.unwrap();
    for _ in 0..4 {
        ask().await.unwrap();
    }
    for node in cluster.nodes() {
        node.send::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal")).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    permit.release().await.unwrap();
    assert_eq!(limiter.peek("u", "r").await.unwrap()[0].available.get(), 6_000);
}

/// The client of a cluster must not send a call again by itself: the call may have been done, and
/// the script would not know of the first attempt.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_call_whose_connection_broke_counts_as_in_doubt() {
    let cluster = RedisCluster::start().await;
    let limiter = on(RedisStore::cluster(cluster.urls()).unwrap(), &TestClock::at(at(T0)));
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits(limits()).no_cascade();
    ask().await.unwrap();
    // The script waits, because it may write.
    for node in cluster.nodes() {
        node.send::<()>(cmd("CLIENT").arg("PAUSE").arg(1_500).arg("WRITE")).await;
    }
    let kill = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for node in cluster.nodes() {
            node.send::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal")).await;
        }
    };
    let (permit, ()) = tokio::join!(ask().into_future(), kill);
    let cost = permit.unwrap().cost();
    assert!(cost.attempts > 1, "{cost:?}");
}
