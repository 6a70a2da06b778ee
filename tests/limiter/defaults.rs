//! Defaults of a limiter, and the parts of a request to which they apply.

use std::time::Duration;

use sluicegate::settings::Cascade;
use sluicegate::{EntityId, Limit, LimitSet, Limiter, MemoryStore};

/// The parent of all others takes from its own bucket alone.
#[tokio::test]
async fn default_parent_can_make_requests_itself() {
    let team = Cascade::To(EntityId::new("team").unwrap());
    let limiter = Limiter::builder(MemoryStore::new()).cascade(team).build();
    let limits = [Limit::per_hour("rph", 10)];
    for entity in ["alice", "team"] {
        let request = limiter.acquire(entity, "r").consume("rph", 1).limits(limits.clone());
        request.await.unwrap();
    }
    let left = limiter.acquire("team", "r").consume("rph", 1).limits(limits).await.unwrap();
    assert_eq!(left.remaining()[0].available.get() / 1_000, 7);
}

#[tokio::test]
async fn empty_set_of_limits_names_none() {
    let defaults = LimitSet::new([Limit::per_hour("rph", 10)]).unwrap();
    let limiter = Limiter::builder(MemoryStore::new()).default_limits(defaults).build();
    let none = LimitSet::new([]).unwrap();
    limiter.acquire("u", "r").consume("rph", 1).limits(&none).await.unwrap();
}

/// A debt of another limit does not delay the request.
#[tokio::test]
async fn time_until_available_is_that_of_the_named_limits() {
    let limiter = Limiter::new(MemoryStore::new());
    let limits = [Limit::per_hour("rph", 10), Limit::per_hour("tph", 10)];
    let ask = || limiter.acquire("u", "r").limits(limits.clone());
    let permit = ask().consume("tph", 1).consume("rph", 1).await.unwrap();
    permit.adjust("tph", 100).await.unwrap();
    let time = ask().consume("rph", 1).time_until_available().await.unwrap();
    assert_eq!(time, Some(Duration::ZERO));
    assert!(ask().consume("tph", 1).time_until_available().await.unwrap() > time);
}
