//! Limits by the calendar, on every store: full at the boundary, debts, changed amounts, costs.

use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::settings::StoreSettings;
use sluicegate::types::{LimitsScope, WritePath};
use sluicegate::{
    AcquireError, CompositeStore, Limit, LimitExceeded, Limiter, OnUnavailable, TestClock,
};
use sluicegate_testkit::{RunningEngine, engines_under_test};
use tokio::time::Instant;

use crate::scripted::{Act, Scripted};
use crate::simulated::Simulated;
use crate::support::limiter as make;
use crate::support::{
    Engine, Shared, T0, at, bucket, builder, name, on_every_store, on_every_table, with_settings,
};

/// From [`T0`], 2026-01-28T14:00:00Z, to 1 February in Berlin.
const UNTIL_FEBRUARY: Duration = Duration::from_secs(3 * 86_400 + 9 * 3_600);
const FEBRUARY: Duration = Duration::from_secs(28 * 86_400);

fn budget(tokens: u64) -> Limit {
    let calendar = "month/Europe/Berlin".parse().unwrap();
    Limit::by_calendar("usd", tokens, calendar)
}

async fn take(
    limiter: &Limiter,
    limit: Limit,
    tokens: i64,
) -> Result<sluicegate::Permit, AcquireError> {
    let rate = Limit::per_second("rps", 1_000);
    limiter.acquire("u", "r").consume("usd", tokens).consume("rps", 1).limits([limit, rate]).await
}

fn exceeded(error: AcquireError) -> LimitExceeded {
    match error {
        AcquireError::LimitExceeded(exceeded) => exceeded,
        other => panic!("{other:?}"),
    }
}

async fn full_at_the_boundary<E: Engine>(engine: E) {
    let clock = TestClock::at(at(T0));
    let limiter = make(engine.clone(), &clock);
    take(&limiter, budget(200), 150).await.unwrap();
    take(&limiter, budget(200), 50).await.unwrap();
    let refused = exceeded(take(&limiter, budget(200), 1).await.unwrap_err());
    assert_eq!(refused.retry_after, Some(UNTIL_FEBRUARY));
    // The rate limit is claimed meanwhile, and with it the refill time moves.
    clock.advance(UNTIL_FEBRUARY - Duration::from_millis(1));
    let rate =
        || limiter.acquire("u", "r").consume("rps", 1).limits([Limit::per_second("rps", 1_000)]);
    rate().await.unwrap();
    let refused = exceeded(take(&limiter, budget(200), 1).await.unwrap_err());
    assert_eq!(refused.retry_after, Some(Duration::from_millis(1)));
    clock.advance(Duration::from_millis(1));
    // Everything is there, once: also for a limiter that knows nothing of this bucket.
    take(&make(engine.clone(), &clock), budget(200), 200).await.unwrap();
    let refused = exceeded(take(&limiter, budget(200), 1).await.unwrap_err());
    assert_eq!(refused.retry_after, Some(FEBRUARY));
    let stored = engine.image(&bucket("u", "r")).await.unwrap();
    let usd = stored.limits[&name("usd")];
    assert_eq!((usd.tokens.get(), usd.consumed.get()), (0, 400_000));
    assert_eq!(usd.rule, budget(200).check().unwrap().1);
}

#[tokio::test(flavor = "multi_thread")]
async fn budget_is_full_again_exactly_at_the_boundary() {
    on_every_store!(full_at_the_boundary);
}

async fn debts<E: Engine>(engine: E) {
    for (limit, in_february, in_march) in
        [(budget(100), None, Some(70)), (budget(100).forgive_debt(), Some(100), Some(100))]
    {
        let clock = TestClock::at(at(T0));
        let limiter = make(engine.clone(), &clock);
        let permit = take(&limiter, limit.clone(), 100).await.unwrap();
        permit.adjust("usd", 130).await.unwrap();
        for (later, left) in [(UNTIL_FEBRUARY, in_february), (FEBRUARY, in_march)] {
            clock.advance(later);
            match left {
                None => _ = exceeded(take(&limiter, limit.clone(), 1).await.unwrap_err()),
                Some(left) => {
                    let permit = take(&limiter, limit.clone(), left).await.unwrap();
                    exceeded(take(&limiter, limit.clone(), 1).await.unwrap_err());
                    permit.release().await.unwrap();
                }
            }
        }
        engine.forget(&bucket("u", "r")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn debt_is_carried_over_or_forgiven() {
    on_every_store!(debts);
}

async fn other_amounts<E: Engine>(engine: E) {
    let clock = TestClock::at(at(T0));
    let limiter = make(engine.clone(), &clock);
    let other = make(engine.clone(), &clock);
    take(&limiter, budget(100), 90).await.unwrap();
    // An operator raises the budget: what was used stays used.
    take(&other, budget(300), 200).await.unwrap();
    exceeded(take(&limiter, budget(300), 11).await.unwrap_err());
    take(&limiter, budget(300), 9).await.unwrap();
    // And lowers it, below what was used.
    let refused = exceeded(take(&other, budget(250), 1).await.unwrap_err());
    assert_eq!(refused.limits[1].available.get(), -49_000);
    exceeded(take(&limiter, budget(250), 1).await.unwrap_err());
    let stored = engine.image(&bucket("u", "r")).await.unwrap();
    assert_eq!(stored.limits[&name("usd")].tokens.get(), -49_000, "once for both processes");
    // Another zone alone credits nothing.
    let tokyo = Limit::by_calendar("usd", 300, "month/Asia/Tokyo".parse().unwrap());
    take(&limiter, tokyo.clone(), 1).await.unwrap();
    exceeded(take(&limiter, tokyo.clone(), 1).await.unwrap_err());
    clock.advance(UNTIL_FEBRUARY - Duration::from_secs(8 * 3_600));
    take(&limiter, tokyo, 300).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_amount_takes_effect_at_once_and_once() {
    on_every_store!(other_amounts);
}

async fn between_limiters<E: Engine>(engine: E) {
    let clock = TestClock::at(at(T0));
    let limiters: Vec<_> = (0..4).map(|_| make(engine.clone(), &clock)).collect();
    for limiter in &limiters {
        take(limiter, budget(100), 25).await.unwrap();
    }
    clock.advance(UNTIL_FEBRUARY);
    let asks = limiters.iter().flat_map(|limiter| [limiter; 10]);
    let granted = futures_util::future::join_all(asks.map(|limiter| take(limiter, budget(100), 5)));
    let granted = granted.await.iter().filter(|granted| granted.is_ok()).count();
    assert_eq!(granted, 20, "the boundary is credited once");
}

#[tokio::test(flavor = "multi_thread")]
async fn boundary_is_credited_once_to_many_limiters() {
    on_every_store!(between_limiters);
}

async fn of_a_parent<E: Engine>(engine: E) {
    let clock = TestClock::at(at(T0));
    let limiter = make(engine, &clock);
    let ask = |tokens| {
        let request = limiter.acquire("child", "r").consume("usd", tokens);
        let (child, parent) = (Limit::per_minute("usd", 1_000), budget(100));
        request.limits([child]).cascade_to("team").parent_limits([parent])
    };
    ask(100).await.unwrap();
    let refused = exceeded(ask(1).await.unwrap_err());
    assert_eq!(refused.retry_after, Some(UNTIL_FEBRUARY));
    clock.advance(UNTIL_FEBRUARY);
    ask(100).await.unwrap();
    exceeded(ask(1).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn calendar_limit_of_a_parent_refills_at_the_boundary() {
    on_every_store!(of_a_parent);
}

async fn leased<E: Engine>(engine: E) {
    let clock = TestClock::at(at(T0));
    let limiter = builder(engine.clone(), &clock).leasing(Default::default()).build();
    for _ in 0..100 {
        take(&limiter, budget(100), 1).await.unwrap();
    }
    exceeded(take(&limiter, budget(100), 1).await.unwrap_err());
    clock.advance(UNTIL_FEBRUARY);
    for _ in 0..100 {
        take(&limiter, budget(100), 1).await.unwrap();
    }
    exceeded(take(&limiter, budget(100), 1).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn leased_calendar_limit_is_full_after_the_boundary() {
    on_every_store!(leased);
}

async fn expiry<T: Shared>(table: T) {
    let clock = TestClock::at(at(T0));
    let limiter = make(table.clone(), &clock);
    let permit = take(&limiter, budget(100), 100).await.unwrap();
    let expires_at = async || table.stored(&bucket("u", "r")).await.unwrap().expires_at_s.unwrap();
    let january_s = T0 / 1_000;
    let february_s = january_s + i64::try_from(UNTIL_FEBRUARY.as_secs()).unwrap();
    assert!(expires_at().await > february_s);
    // With a debt it is full in March; March has a boundary more.
    permit.adjust("usd", 201).await.unwrap();
    assert!(expires_at().await > february_s + 59 * 86_400);
}

#[tokio::test(flavor = "multi_thread")]
async fn used_up_budget_does_not_expire_before_it_is_full() {
    on_every_table!(expiry);
}

async fn costs<T: Shared>(table: T) {
    let clock = TestClock::at(at(T0));
    let limiter = with_settings(table, &clock, StoreSettings::default());
    let other = Limit::per_day("usd", 100);
    for (resource, limit) in [("even", other), ("calendar", budget(100))] {
        let ask = || {
            let request = limiter.acquire("u", resource).consume("usd", 1).consume("rps", 1);
            request.limits([limit.clone(), Limit::per_second("rps", 100)])
        };
        ask().await.unwrap();
        for later in [10, 150, 10, 150] {
            clock.advance(Duration::from_millis(later));
            let permit = ask().await.unwrap();
            let path = if later < 100 { WritePath::Unclaimed } else { WritePath::Claim };
            let cost = permit.cost();
            assert_eq!(
                (cost.path, cost.attempts, cost.read_units),
                (Some(path), 1, 0.0),
                "{resource}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn budget_costs_what_another_limit_costs() {
    on_every_table!(costs);
}

/// An operator raises a stored budget on the 20th: every process has it within a minute, once.
#[tokio::test(flavor = "multi_thread")]
async fn stored_budget_is_raised_once_for_all_processes() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = DynamoTable::new(engine.client(), engine.create_table().await);
        let clock = TestClock::at(at(T0));
        let limiters: Vec<_> = (0..3).map(|_| make(table.clone(), &clock)).collect();
        let system = LimitsScope::System;
        let ask = async |limiter: &Limiter, tokens| {
            limiter.acquire("u", "r").consume("usd", tokens).no_cascade().await
        };
        limiters[0].set_limits(&system, &[budget(100)]).await.unwrap();
        for limiter in &limiters {
            ask(limiter, 30).await.unwrap();
        }
        limiters[0].set_limits(&system, &[budget(300)]).await.unwrap();
        clock.advance(Duration::from_secs(61));
        for limiter in &limiters {
            ask(limiter, 70).await.unwrap();
        }
        for limiter in &limiters {
            exceeded(ask(limiter, 1).await.unwrap_err());
        }
        // Stored as a rate: no calendar is left in the item.
        limiters[0].set_limits(&system, &[Limit::per_minute("usd", 300)]).await.unwrap();
        clock.advance(Duration::from_secs(61));
        exceeded(ask(&limiters[1], 1).await.unwrap_err());
        clock.advance(Duration::from_secs(60));
        ask(&limiters[2], 300).await.unwrap();
        let stored = table.stored(&bucket("u", "r")).await.unwrap();
        assert_eq!(
            stored.limits[&name("usd")].rule,
            Limit::per_minute("usd", 300).check().unwrap().1
        );
        engine.stop().await;
    }
}

/// The store is unavailable over a boundary: the process goes on with what was left, and at the
/// boundary with a full budget.
#[tokio::test(start_paused = true)]
async fn outage_over_a_boundary_begins_the_next_period() {
    let table = Scripted::default();
    let start = Instant::now();
    // The limiter probes an unavailable store every second, so the boundary is close.
    let before = Duration::from_secs(600);
    let off_ms = i64::try_from((UNTIL_FEBRUARY - before).as_millis()).unwrap();
    let clock = Simulated { start, off_ms };
    let store = CompositeStore::with_table(table.clone());
    let limiter = Limiter::builder(store).clock(clock).on_unavailable(OnUnavailable::Local).build();
    take(&limiter, budget(100), 60).await.unwrap();
    table.always(Act::Hang);
    let granted = async |most: u32| {
        let mut granted = 0;
        while granted < most && take(&limiter, budget(100), 1).await.is_ok() {
            granted += 1;
        }
        granted
    };
    assert_eq!(granted(1_000).await, 40);
    tokio::time::sleep(before).await;
    assert_eq!(granted(1_000).await, 100);
}

async fn shadowed<E: Engine>(engine: E) {
    let clock = TestClock::at(at(T0));
    let limiter = builder(engine.clone(), &clock).shadow().build();
    for n in 0..12 {
        let permit = take(&limiter, budget(10), 1).await.unwrap();
        assert_eq!(permit.shadowed().is_some(), n >= 10, "{n}");
    }
    clock.advance(UNTIL_FEBRUARY);
    assert!(take(&limiter, budget(10), 10).await.unwrap().shadowed().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn budget_is_tried_out_in_shadow_mode() {
    on_every_store!(shadowed);
}
