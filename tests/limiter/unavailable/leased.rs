//! The use of held tokens while the store is unavailable.

use std::time::Duration;

use sluicegate::settings::{BreakerConfig, StoreSettings};
use sluicegate::types::{Amounts, Millitokens};
use sluicegate::{
    AcquireError, AdjustError, CompositeStore, LeaseMode, LeaseSettings, Limit, Limiter,
    OnUnavailable,
};
use tokio::time::Instant;

use super::{DEADLINE, FAILURES, is_unavailable, timed};
use crate::scripted::{Act, Scripted};
use crate::simulated::Simulated;
use crate::support::{Shared as _, bucket, name};

macro_rules! ask {
    ($limiter:expr, $entity:expr) => {
        $limiter
            .acquire($entity, "r")
            .consume("rps", 1)
            .limits([Limit::per_second("rps", 10_000)])
            .no_cascade()
    };
}

/// A limiter that holds tokens of one entity, and whose store was found to be unavailable.
async fn away(policy: OnUnavailable, mode: LeaseMode) -> (Limiter, Scripted) {
    let table = Scripted::default();
    let clock = Simulated { start: Instant::now(), off_ms: 0 };
    let settings = LeaseSettings { mode, ..LeaseSettings::default() };
    let store = CompositeStore::with_table(table.clone());
    let limiter =
        Limiter::builder(store).clock(clock).leasing(settings).on_unavailable(policy).build();
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
async fn held_tokens_are_handed_out_and_then_the_policy_decides() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 100 }] {
        let (limiter, table) = away(OnUnavailable::Allow, mode).await;
        let start = Instant::now();
        let mut held = 0;
        while ask!(limiter, "u").await.unwrap().degraded().is_none() {
            held += 1;
        }
        assert!(held >= 10, "{mode:?}: {held}");
        assert_eq!((start.elapsed(), limiter.counters().degraded.get()), (Duration::ZERO, 6));
        // One write to lease more, which hangs.
        assert!(table.calls() <= 1);
        let (limiter, _) = away(OnUnavailable::Deny, mode).await;
        while limiter.counters().undecided_by_store.get() == u64::from(FAILURES) {
            if let Err(error) = ask!(limiter, "u").await {
                is_unavailable::<()>(Err(error));
            }
        }
    }
}

/// The parent would have to be looked up by then: the table is not asked.
#[tokio::test(start_paused = true)]
async fn leased_long_outage_asks_the_table_nothing() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 100 }] {
        let table = Scripted::default();
        let clock = Simulated { start: Instant::now(), off_ms: 0 };
        let settings = LeaseSettings { mode, ..LeaseSettings::default() };
        let store = CompositeStore::with_table(table.clone());
        let limiter = Limiter::builder(store).clock(clock).leasing(settings).build();
        limiter.warm_up().await.unwrap();
        let ask = || {
            let limits = [Limit::per_second("rps", 10_000)];
            limiter.acquire("u", "r").consume("rps", 1).limits(limits)
        };
        let call = ask().prepare().await.unwrap();
        for _ in 0..500 {
            ask().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        table.always(Act::Hang);
        for n in 0..FAILURES {
            ask!(limiter, format!("other-{n}")).await.unwrap();
        }
        assert_eq!(limiter.counters().outages.get(), 1);
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(limiter.leased().unwrap().held_keys(), 1, "something is not settled");
        table.calls();
        for _ in 0..100 {
            assert!(ask().await.unwrap().degraded().is_some());
            assert!(call.acquire().await.unwrap().degraded().is_some());
            assert!(call.try_acquire().is_none());
        }
        assert_eq!(table.calls(), 0, "{mode:?}");
    }
}

/// The tokens may belong to another process by then.
#[tokio::test(start_paused = true)]
async fn held_tokens_are_not_handed_out_after_their_time() {
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
    let permit = ticket.into_permit();
    assert!(permit.degraded().is_some());
    assert!(permit.adjust("rps", 1).await.unwrap().degraded.is_some());
    call.acquire().await.unwrap().release();
    assert!(call.try_acquire().is_none(), "nothing was given back that was not taken");

    table.always(Act::Answer);
    tokio::time::sleep(super::PROBED).await;
    assert!(call.acquire().await.unwrap().degraded().is_none());
    let (denying, _) = away(OnUnavailable::Deny, LeaseMode::default()).await;
    let call = ask!(denying, "cold").prepare().await.unwrap();
    let cold = call.acquire().await.map(drop);
    assert!(matches!(cold, Err(AcquireError::Unavailable(_))), "{cold:?}");
}

/// A limiter that was connected, whose table behaves like this from now on.
async fn connected(act: Act) -> (Limiter, Scripted) {
    let table = Scripted::default();
    let clock = Simulated { start: Instant::now(), off_ms: 0 };
    // Every refusal comes from the table.
    let settings = StoreSettings { refusal_age_max: Duration::ZERO, ..StoreSettings::default() };
    let store = CompositeStore::with_settings(table.clone(), settings);
    let limiter = Limiter::builder(store).clock(clock).leasing(LeaseSettings::default()).build();
    limiter.warm_up().await.unwrap();
    table.always(act);
    (limiter, table)
}

/// All but one of them wait for another's write: each must be told the state of the store.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_asks_for_one_key_is_told_what_the_store_says() {
    let (limiter, _) = connected(Act::Hang).await;
    let crowd = async |limiter: &Limiter| {
        let asks = (0..64).map(|_| ask!(limiter, "u").into_future());
        timed(futures_util::future::join_all(asks)).await
    };
    let (permits, took) = crowd(&limiter).await;
    assert!(permits.iter().all(|permit| permit.as_ref().unwrap().degraded().is_some()));
    assert_eq!((took, limiter.counters().outages.get()), (DEADLINE, 1));

    let (limiter, _) = connected(Act::Throttle).await;
    let (refusals, took) = crowd(&limiter).await;
    for refusal in refusals {
        let refusal = refusal.map(drop);
        assert!(matches!(refusal, Err(AcquireError::Contended { .. })), "{refusal:?}");
    }
    assert!(took <= DEADLINE, "{took:?}");
    assert_eq!(limiter.counters().undecided_by_store.get(), 0);
}

/// A crowd on a bucket that has nothing left waits for its turn, and no request is admitted because
/// there was no time left for an answer.
#[tokio::test(start_paused = true)]
async fn long_wait_for_a_turn_is_no_outage() {
    let (limiter, table) = connected(Act::Answer).await;
    let ask = || {
        let limits = [Limit::quota("rps", 1)];
        limiter.acquire("u", "r").consume("rps", 1).limits(limits).no_cascade().into_future()
    };
    ask().await.unwrap();
    table.always(Act::Slow(Duration::from_millis(40)));
    let refusals = futures_util::future::join_all((0..64).map(|_| ask())).await;
    for refusal in refusals {
        let refusal = refusal.map(drop);
        assert!(
            matches!(refusal, Err(AcquireError::LimitExceeded(_) | AcquireError::Contended { .. })),
            "{refusal:?}"
        );
    }
    assert_eq!(limiter.counters().undecided_by_store.get(), 0);
}

/// One deadline for both buckets, however long the first one takes.
#[tokio::test(start_paused = true)]
async fn a_childs_and_its_parents_bucket_have_one_deadline() {
    let (limiter, table) = connected(Act::Hang).await;
    table.on_reads([Act::Answer; 2]);
    table.on_writes([Act::Slow(Duration::from_millis(200))]);
    let limits = [Limit::per_second("rps", 10_000)];
    let request = limiter.acquire("child", "r").consume("rps", 1).limits(limits);
    let (permit, took) = timed(request.cascade_to("parent")).await;
    assert!(permit.unwrap().degraded().is_some());
    assert_eq!(took, DEADLINE);
}

/// Held tokens are given back and corrected without the store: that is no answer of it.
#[tokio::test(start_paused = true)]
async fn a_correction_of_what_is_held_says_nothing_of_the_store() {
    let (limiter, table) = connected(Act::Answer).await;
    for _ in 0..500 {
        ask!(limiter, "u").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let permit = ask!(limiter, "u").await.unwrap();
    table.always(Act::Hang);
    permit.adjust("rps", 1).await.unwrap();
    for n in 1..FAILURES {
        ask!(limiter, format!("other-{n}")).await.unwrap();
        permit.adjust("rps", -1).await.unwrap();
    }
    ask!(limiter, "other").await.unwrap();
    assert_eq!(limiter.counters().outages.get(), 1);

    table.always(Act::Answer);
    tokio::time::sleep(super::PROBED).await;
    table.always(Act::Hang);
    // A trial, if a call reached the store.
    permit.adjust("rps", -1).await.unwrap();
    let (permit, took) = timed(ask!(limiter, "other")).await;
    assert!(permit.unwrap().degraded().is_some());
    assert_eq!(took, DEADLINE, "this one is on trial");
    let (_, took) = timed(ask!(limiter, "other")).await;
    assert_eq!((took, limiter.counters().outages.get()), (Duration::ZERO, 1));
}

/// A cold key costs a read in write-behind, and no write.
#[tokio::test(start_paused = true)]
async fn a_read_or_a_lease_that_is_answered_ends_the_outage() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 100 }] {
        let (limiter, table) = away(OnUnavailable::Allow, mode).await;
        table.always(Act::Answer);
        tokio::time::sleep(super::PROBED).await;
        assert!(ask!(limiter, "cold").await.unwrap().degraded().is_none());
        table.always(Act::Slow(Duration::from_millis(5)));
        let (one, other) = tokio::join!(ask!(limiter, "colder"), ask!(limiter, "coldest"));
        for permit in [one, other] {
            assert!(permit.unwrap().degraded().is_none(), "{mode:?}");
        }
    }
}

/// The store answers renewals all the time. So two calls that fail, minutes apart, are no outage.
#[tokio::test(start_paused = true)]
async fn answers_to_renewals_tell_that_the_store_is_there() {
    for mode in [LeaseMode::default(), LeaseMode::WriteBehind { threshold: 100 }] {
        let table = Scripted::default();
        let clock = Simulated { start: Instant::now(), off_ms: 0 };
        let settings = LeaseSettings { mode, ..LeaseSettings::default() };
        let store = CompositeStore::with_table(table.clone());
        let breaker = BreakerConfig { failures: 2, ..BreakerConfig::default() };
        let limiter = Limiter::builder(store).clock(clock).leasing(settings).breaker(breaker);
        let limiter = limiter.on_unavailable(OnUnavailable::Deny).build();
        limiter.warm_up().await.unwrap();
        for round in 0..3 {
            for _ in 0..2_000 {
                ask!(limiter, "u").await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(table.calls() > 0);
            table.always(Act::Hang);
            is_unavailable(ask!(limiter, format!("cold-{round}")).await);
            table.always(Act::Answer);
        }
        assert_eq!(limiter.counters().outages.get(), 0, "{mode:?}");
    }
}

/// The deadline ends the commit's second attempt: the table answered the first one.
#[tokio::test(start_paused = true)]
async fn a_throttled_commit_is_no_outage() {
    let table = Scripted::default();
    let clock = Simulated { start: Instant::now(), off_ms: 0 };
    let settings =
        LeaseSettings { mode: LeaseMode::WriteBehind { threshold: 50 }, ..Default::default() };
    let store = CompositeStore::with_table(table.clone());
    let builder = Limiter::builder(store).clock(clock).leasing(settings);
    let limiter = builder.on_unavailable(OnUnavailable::Allow).build();
    let ask = || {
        let limits = [Limit::per_second("rps", 10_000)];
        limiter.acquire("u", "r").consume("rps", 30).limits(limits).no_cascade()
    };
    ask().await.unwrap();
    table.on_writes([Act::Throttle, Act::Hang]);
    table.always(Act::Hang);
    let contended = ask().await;
    assert!(matches!(contended, Err(AcquireError::Contended { .. })), "{contended:?}");
    assert_eq!(limiter.counters().undecided_by_store.get(), 0);
}

/// Nothing was held when the answer was lost. When the correction is made again, tokens are.
#[tokio::test(start_paused = true)]
async fn a_correction_in_doubt_is_not_made_from_held_tokens() {
    for is_abandoned in [false, true] {
        let table = Scripted::default();
        let clock = Simulated { start: Instant::now(), off_ms: 0 };
        let store = CompositeStore::with_table(table.clone());
        let builder = Limiter::builder(store).clock(clock).leasing(LeaseSettings::default());
        let limiter = builder.on_unavailable(OnUnavailable::Deny).build();
        let permit = ask!(limiter, "u").await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(limiter.leased().unwrap().held_keys(), 0);
        table.on_writes([Act::LoseReply]);
        table.always(Act::Hang);
        let correction = permit.adjust("rps", 100);
        if is_abandoned {
            let left = tokio::time::timeout(Duration::from_millis(100), correction).await;
            assert!(left.is_err());
        } else {
            correction.await.unwrap_err();
        }
        table.always(Act::Answer);
        // The call that hangs is given up.
        tokio::time::sleep(Duration::from_secs(5)).await;
        for _ in 0..500 {
            ask!(limiter, "u").await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        permit.adjust("rps", 100).await.unwrap();
        limiter.shutdown(Duration::from_secs(5)).await;
        let stored = table.memory.stored(&bucket("u", "r")).await.unwrap();
        let consumed = stored.limits[&name("rps")].consumed.get();
        assert_eq!(consumed, 601_000, "abandoned {is_abandoned}");
    }
}

/// The debits were written and their answer was lost, before the rest went into the pools. By the
/// time of the repetition the process leases no more, so that it all goes to the store.
#[tokio::test(start_paused = true)]
async fn a_repeated_correction_gives_back_what_the_first_one_did_not() {
    let table = Scripted::default();
    let clock = Simulated { start: Instant::now(), off_ms: 0 };
    let store = CompositeStore::with_table(table.clone());
    let builder = Limiter::builder(store).clock(clock).leasing(LeaseSettings::default());
    let limiter = builder.on_unavailable(OnUnavailable::Deny).build();
    let limits = ["rps", "tps"].map(|limit| Limit::per_second(limit, 10_000));
    let request = limiter.acquire("u", "r").consume("rps", 1).consume("tps", 10).limits(limits);
    let permit = request.no_cascade().await.unwrap();
    table.on_writes([Act::LoseReply]);
    table.always(Act::Hang);
    let amounts: Amounts = [("rps", 5_000_000), ("tps", -3_000)]
        .map(|(limit, milli)| (name(limit), Millitokens::new(milli).unwrap()))
        .into();
    let lost = permit.adjust_all(&amounts).await;
    assert!(matches!(lost, Err(AdjustError::Unavailable(_))), "{lost:?}");
    table.always(Act::Answer);
    limiter.shutdown(Duration::from_secs(10)).await;
    permit.adjust_all(&amounts).await.unwrap();
    let stored = table.memory.stored(&bucket("u", "r")).await.unwrap();
    let consumed = |limit| stored.limits[&name(limit)].consumed.get();
    assert_eq!((consumed("rps"), consumed("tps")), (5_001_000, 7_000));
}
