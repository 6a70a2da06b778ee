//! Tests which acquires the script decides without its functions.

use std::time::Duration;

use sluicegate_core::{EntityId, Millitokens, Resource};
use sluicegate_testkit::RedisServer;

use super::super::script::{ACQUIRE, ADJUST};
use super::*;
use crate::call::new_id;
use crate::check::rules;
use crate::clock::TestClock;
use crate::limit::Limit;
use crate::store::Cascade;

/// Asks for one token of each of these limits.
fn request(limits: &[Limit], cascade: Cascade) -> Request {
    let limits = rules(limits).unwrap();
    let amount = Millitokens::from_tokens(1).unwrap();
    Request {
        entity: EntityId::new("u").unwrap(),
        resource: Resource::new("r").unwrap(),
        amounts: limits.keys().map(|limit| (limit.clone(), amount)).collect(),
        limits: limits.into(),
        parent_limits: None,
        cascade,
        deadline: Duration::from_secs(20),
    }
}

impl RedisStore {
    /// Tells a reply to a usual acquire from that of the whole script.
    async fn is_usual(&self, request: &Request, id: &RequestId, attempts_in_doubt: u32) -> bool {
        let sent = SentAt { now_ms: 1_769_608_800_000, attempts_in_doubt };
        let call =
            self.take_or_correct_call(&self.targets(request).unwrap(), &request.amounts, id, sent);
        Reply::new(ACQUIRE.run(&self.connection, &call).await.unwrap()).is_usual()
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn an_acquire_is_usual_from_the_second_on() {
    let server = RedisServer::start().await;
    let five = ["a", "b", "c", "d", "e"].map(|name| Limit::per_minute(name, 100));
    let parent = || Cascade::To(EntityId::new("team").unwrap());
    let cases = [
        request(&five[..1], Cascade::No),
        request(&five, Cascade::No),
        request(&[Limit::quota("q", 9), Limit::per_day("tpm.v2", 1_000_000)], Cascade::No),
        request(&five, parent()),
    ];
    for (n, request) in cases.iter().enumerate() {
        let store = RedisStore::new(server.url()).unwrap().prefix(format!("{n}:"));
        assert!(!store.is_usual(request, &new_id(), 0).await, "there is no bucket");
        let id = new_id();
        assert!(store.is_usual(request, &id, 0).await, "{request:?}");
        assert!(!store.is_usual(request, &id, 0).await, "the bucket remembers the id");
        assert!(!store.is_usual(request, &new_id(), 1).await, "an answer was lost");
        let limit = request.limits.keys().next().unwrap().clone();
        let mut fewer = request.clone();
        fewer.amounts.retain(|name, _| *name == limit);
        assert!(store.is_usual(&fewer, &new_id(), 0).await, "not all that is named is asked");
        let clock = TestClock::at(EpochMillis::new(1_769_608_800_000).unwrap());
        let grant = store.take(request, &clock).await.unwrap();
        let taken: Vec<_> = grant.parts.iter().map(|part| part.amounts.len()).collect();
        let bucket = grant.parts[0].image.as_ref().unwrap();
        let targets = if request.cascade == Cascade::No { 1 } else { 2 };
        assert_eq!(taken, vec![request.limits.len(); targets]);
        assert_eq!((grant.cost.path, bucket.request_ids.len()), (Some(WritePath::Claim), 4));
        let consumed = bucket.limits[&limit].consumed.get();
        assert_eq!(consumed, 5_000, "what the bucket remembered was not taken again");
    }
}

/// A request that names more limits than the one before finds them in its own order afterwards.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn an_acquire_is_usual_after_others_that_named_fewer_limits() {
    let server = RedisServer::start().await;
    let store = RedisStore::new(server.url()).unwrap();
    let limits = ["a", "b"].map(|name| Limit::per_minute(name, 100));
    let (second, both) = (request(&limits[1..], Cascade::No), request(&limits, Cascade::No));
    let mut usual = Vec::new();
    for request in [&second, &both, &both, &second, &both] {
        usual.push(store.is_usual(request, &new_id(), 0).await);
    }
    assert_eq!(usual, [false, false, true, false, false]);
    assert!(store.is_usual(&both, &new_id(), 0).await);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test"]
async fn a_correction_is_usual_unless_it_leaves_a_debt() {
    let server = RedisServer::start().await;
    let store = RedisStore::new(server.url()).unwrap();
    let request = request(&[Limit::quota("a", 9), Limit::per_day("b", 9)], Cascade::No);
    let correct = async |milli: i64| {
        let mut amounts = request.amounts.clone();
        amounts.retain(|limit, _| limit.as_str() == "b");
        amounts.values_mut().for_each(|amount| *amount = Millitokens::new(milli).unwrap());
        let targets = store.targets(&request).unwrap();
        let sent = SentAt { now_ms: 1_769_608_800_000, attempts_in_doubt: 0 };
        let call = store.take_or_correct_call(&targets, &amounts, &new_id(), sent);
        Reply::new(ADJUST.run(&store.connection, &call).await.unwrap()).is_usual()
    };
    assert!(!correct(1_000).await, "there is no bucket");
    assert!(correct(2_000).await);
    assert!(correct(-1_000).await);
    assert!(!correct(9_000).await, "a debt of two");
    assert!(!store.is_usual(&request, &new_id(), 0).await, "a refusal has a header");
    assert!(!correct(1_000).await, "a debt of three");
    assert!(correct(-9_000).await);
    assert!(!correct(-8_000).await, "a counter below zero");
}
