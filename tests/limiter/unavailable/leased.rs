//! What a process does with what it holds while the store is away.

use std::time::Duration;

use sluicegate::{
    AcquireError, CompositeStore, LeaseMode, LeaseSettings, LeasedLimiter, Limit, OnUnavailable,
};
use tokio::time::Instant;

use super::{FAILURES, is_unavailable};
use crate::scripted::{Act, Scripted};
use crate::simulated::Simulated;

type Ours = LeasedLimiter<CompositeStore<Scripted>, Simulated>;

macro_rules! ask {
    ($limiter:expr, $entity:expr) => {
        $limiter
            .acquire($entity, "r")
            .consume("rps", 1)
            .limits([Limit::per_second("rps", 10_000)])
            .no_cascade()
    };
}

/// A limiter that holds tokens of one entity, and whose store was found to be away.
async fn away(policy: OnUnavailable, mode: LeaseMode) -> (Ours, Scripted) {
    let table = Scripted::default();
    let clock = Simulated { start: Instant::now(), off_ms: 0 };
    let settings = LeaseSettings { mode, ..LeaseSettings::default() };
    let store = CompositeStore::on(table.clone());
    let limiter = LeasedLimiter::leased_with(store, clock, settings).on_unavailable(policy);
    limiter.warm_up().await.unwrap();
    for _ in 0..500 {
        ask!(limiter, "u").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    table.always(Act::Hang);
    let others = (0..FAILURES).map(|n| ask!(limiter, format!("other-{n}")).into_future());
    futures_util::future::join_all(others).await;
    assert_eq!(limiter.counters().outages.get(), 1);
    table.calls();
    (limiter, table)
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_handed_out_and_then_the_setting_decides() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 100 }] {
        let (limiter, table) = away(OnUnavailable::Allow, mode).await;
        let start = Instant::now();
        let mut held = 0;
        while ask!(limiter, "u").await.unwrap().degraded().is_none() {
            held += 1;
        }
        assert!(held >= 10, "{mode:?}: {held}");
        assert_eq!((start.elapsed(), limiter.counters().degraded.get()), (Duration::ZERO, 6));
        // One write to have more, which hangs.
        assert!(table.calls() <= 1);
        let denied = ask!(limiter.clone().on_unavailable(OnUnavailable::Deny), "u").await;
        is_unavailable(denied);
    }
}

/// It may be another's by then.
#[tokio::test(start_paused = true)]
async fn what_is_held_is_not_handed_out_for_longer_than_it_may_be() {
    let (limiter, _) = away(OnUnavailable::Deny, LeaseMode::default()).await;
    ask!(limiter, "u").await.unwrap();
    tokio::time::sleep(LeaseSettings::default().max_age).await;
    is_unavailable(ask!(limiter, "u").await);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_prepared_is_degraded_as_any_other() {
    let (limiter, table) = away(OnUnavailable::Allow, LeaseMode::default()).await;
    let call = ask!(limiter, "u").prepare().await.unwrap();
    let mut held = 0;
    let ticket = loop {
        let ticket = call.acquire().await.unwrap();
        if ticket.degraded().is_some() {
            break ticket;
        }
        held += 1;
    };
    assert!(held >= 10, "{held}");
    let lease = ticket.into_lease();
    assert!(lease.degraded().is_some());
    assert!(lease.adjust("rps", 1).await.unwrap().degraded.is_some());
    call.acquire().await.unwrap().release();
    assert!(call.try_acquire().is_none(), "nothing was given back that was not taken");

    table.always(Act::Answer);
    tokio::time::sleep(super::PROBED).await;
    assert!(call.acquire().await.unwrap().degraded().is_none());
    let denying = limiter.on_unavailable(OnUnavailable::Deny);
    table.always(Act::Hang);
    let call = ask!(denying, "cold").prepare().await.unwrap();
    let cold = call.acquire().await.map(drop);
    assert!(matches!(cold, Err(AcquireError::Unavailable(_))), "{cold:?}");
}
