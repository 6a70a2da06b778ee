//! Changed limits take effect on buckets that refuse, too: once, and the wait is that of the new
//! rule.

use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::settings::{BreakerConfig, CascadeMode, Certainty, StoreSettings};
use sluicegate::types::LimitsScope;
use sluicegate::{
    AcquireError, CompositeStore, LeaseMode, LeaseSettings, Limit, LimitExceeded, Limiter,
    OnUnavailable, TestClock,
};
use sluicegate_testkit::{RunningEngine, engines_under_test};

use crate::leased::Counted;
use crate::scripted::{Act, Scripted};
use crate::support::{
    DEADLINE, Engine, T0, at, bucket, limiter, limiter_on, name, on_every_store, patient,
    with_settings,
};

fn exceeded<T: std::fmt::Debug>(result: Result<T, AcquireError>) -> LimitExceeded {
    match result {
        Err(AcquireError::LimitExceeded(exceeded)) => exceeded,
        other => panic!("{other:?}"),
    }
}

/// The burst of `tpm` as it is stored, in tokens.
async fn burst<E: Engine>(engine: &E, entity: &str) -> i64 {
    let stored = engine.image(&bucket(entity, "r")).await.unwrap();
    stored.limits[&name("tpm")].rule.burst().get() / 1_000
}

#[tokio::test(flavor = "multi_thread")]
async fn raised_limits_of_the_request_reach_a_short_bucket() {
    async fn suite<E: Engine>(engine: E) {
        let clock = TestClock::at(at(T0));
        let limiter = limiter(engine.clone(), &clock);
        let ask = |tokens, limit: u64| {
            let limits = [Limit::per_minute("tpm", limit)];
            limiter.acquire("u", "r").consume("tpm", tokens).limits(limits)
        };
        ask(50, 100).await.unwrap();
        let refused = exceeded(ask(500, 10_000).await);
        assert_eq!(refused.retry_after, Some(Duration::from_millis(2_700)));
        assert_eq!(burst(&engine, "u").await, 10_000);
        clock.advance(Duration::from_millis(2_700));
        ask(500, 10_000).await.unwrap();
    }
    on_every_store!(suite);
}

/// As in a deployment that changes the limits in the requests process by process.
#[tokio::test(start_paused = true)]
async fn refused_processes_that_disagree_write_once_a_minute_each() {
    let (table, clock) = (Counted::new(1), TestClock::at(at(T0)));
    let processes = [10, 20].map(|limit| (limiter_on(table.clone(), &clock), limit));
    let ask = async |limiter: &Limiter, limit: u64| {
        let limits = [Limit::per_day("tpm", limit)];
        limiter.acquire("u", "r").consume("tpm", 10).limits(limits).await
    };
    ask(&processes[0].0, processes[0].1).await.unwrap();
    let before = table.writes();
    for _ in 0..59 {
        clock.advance(Duration::from_millis(2_010));
        for (limiter, limit) in &processes {
            exceeded(ask(limiter, *limit).await);
        }
    }
    let writes = table.writes() - before;
    assert!((2..=4).contains(&writes), "{writes} writes in two minutes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_is_used_up_and_given_a_rate_refills() {
    async fn suite<E: Engine>(engine: E) {
        let clock = TestClock::at(at(T0));
        let limiter = limiter(engine, &clock);
        let ask = |limit: Limit| limiter.acquire("u", "r").consume("tpm", 10).limits([limit]);
        ask(Limit::quota("tpm", 10)).await.unwrap();
        assert_eq!(exceeded(ask(Limit::quota("tpm", 10)).await).retry_after, None);
        let refused = exceeded(ask(Limit::per_minute("tpm", 60)).await);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(10)));
        clock.advance(Duration::from_secs(10));
        ask(Limit::per_minute("tpm", 60)).await.unwrap();
    }
    on_every_store!(suite);
}

/// Prepaid tokens: a raised amount adds the difference, once, whichever process writes it first.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_quota_keeps_what_was_consumed() {
    async fn suite<E: Engine>(engine: E) {
        let clock = TestClock::at(at(T0));
        let limiters = [limiter(engine.clone(), &clock), limiter(engine, &clock)];
        let ask = |n: usize, tokens, amount| {
            let limits = [Limit::quota("tpm", amount)];
            limiters[n].acquire("u", "r").consume("tpm", tokens).limits(limits)
        };
        ask(0, 100, 100).await.unwrap();
        exceeded(ask(1, 1, 100).await);
        // Both ask under the raised amount at once: it is added once.
        let asks = (0..8).map(|n| ask(n % 2, 50, 300).into_future());
        let granted = futures_util::future::join_all(asks).await;
        assert_eq!(granted.iter().filter(|granted| granted.is_ok()).count(), 4);
        // Lowered, it has as much less: 300 of 250 are consumed.
        exceeded(ask(0, 1, 250).await);
        exceeded(ask(1, 1, 300).await);
        ask(0, 10, 310).await.unwrap();
        exceeded(ask(1, 1, 310).await);
    }
    on_every_store!(suite);
}

#[tokio::test(flavor = "multi_thread")]
async fn never_admissible_request_leaves_the_new_rule() {
    async fn suite<E: Engine>(engine: E) {
        let clock = TestClock::at(at(T0));
        let limiter = limiter(engine.clone(), &clock);
        let ask = |tokens, limit: u64| {
            let limits = [Limit::per_minute("tpm", limit)];
            limiter.acquire("u", "r").consume("tpm", tokens).limits(limits)
        };
        ask(1, 1_000).await.unwrap();
        let never = ask(500, 100).await;
        assert!(matches!(never, Err(AcquireError::NeverAdmissible(_))), "{never:?}");
        assert_eq!(burst(&engine, "u").await, 100);
        // An amount that was never available under the old rule has a wait.
        let wait = exceeded(ask(500, 600).await).retry_after.unwrap();
        // From a hundred on, or a little less: a claim leaves room below the burst.
        assert_eq!(wait.as_secs(), 40);
        clock.advance(wait);
        ask(500, 600).await.unwrap();
    }
    on_every_store!(suite);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_buckets_of_a_refused_cascade_are_changed() {
    async fn suite<E: Engine>(engine: E) {
        let cases = [
            (CascadeMode::Transaction, "child"),
            (CascadeMode::Transaction, "parent"),
            (CascadeMode::Compensating, "child"),
            (CascadeMode::Compensating, "parent"),
        ];
        for (n, (mode, short)) in cases.into_iter().enumerate() {
            let clock = TestClock::at(at(T0));
            let settings = StoreSettings { cascade_mode: mode, ..StoreSettings::default() };
            let limiter = with_settings(engine.clone(), &clock, settings);
            let (child, parent) = (format!("child-{n}"), format!("parent-{n}"));
            let limits = |of, limit: u64| {
                [Limit::per_minute("tpm", if of == short { limit } else { 100 * limit })]
            };
            let ask = |tokens, limit: u64| {
                let ask = limiter.acquire(&child, "r").consume("tpm", tokens);
                let ask = ask.limits(limits("child", limit)).cascade_to(&parent);
                ask.parent_limits(limits("parent", limit))
            };
            ask(50, 100).await.unwrap();
            exceeded(ask(500, 10_000).await);
            let of = |entity| if entity == short { 10_000 } else { 1_000_000 };
            assert_eq!(burst(&engine, &child).await, of("child"), "{mode:?}, {short} is short");
            assert_eq!(burst(&engine, &parent).await, of("parent"), "{mode:?}, {short} is short");
            clock.advance(Duration::from_millis(2_700));
            ask(500, 10_000).await.unwrap();
        }
    }
    on_every_store!(suite);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_brings_raised_limits_to_a_short_bucket() {
    async fn suite<E: Engine>(engine: E) {
        for (entity, mode) in
            [("strict", LeaseMode::default()), ("behind", LeaseMode::WriteBehind { threshold: 5 })]
        {
            let clock = TestClock::at(at(T0));
            limiter(engine.clone(), &clock)
                .acquire(entity, "r")
                .consume("tpm", 50)
                .limits([Limit::per_minute("tpm", 100)])
                .await
                .unwrap();
            let settings = LeaseSettings { mode, deadline: DEADLINE, ..LeaseSettings::default() };
            let store = engine.store(StoreSettings::default());
            let leased = patient(Limiter::builder(store).clock(clock.clone()).leasing(settings));
            let raised = || [Limit::per_minute("tpm", 10_000)];
            let ask = || leased.acquire(entity, "r").consume("tpm", 500).limits(raised());
            let refused = exceeded(ask().await);
            assert_eq!(refused.retry_after, Some(Duration::from_millis(2_700)), "{mode:?}");
            assert_eq!(burst(&engine, entity).await, 10_000, "{mode:?}");
            clock.advance(Duration::from_millis(2_700));
            ask().await.unwrap();
        }
    }
    on_every_store!(suite);
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_limits_reach_a_short_bucket() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = DynamoTable::new(engine.client(), engine.create_table().await);
        for certainty in [Certainty::Remembered, Certainty::Transactional] {
            let entity = format!("{certainty:?}");
            let scope = LimitsScope::Entity(bucket(&entity, "r").entity);
            let clock = TestClock::at(at(T0));
            let settings = || StoreSettings { certainty, ..StoreSettings::default() };
            let of = || with_settings(table.clone(), &clock, settings());
            let (limiter, other) = (of(), of());
            let ask = async |limiter: &Limiter, tokens| {
                limiter.acquire(&entity, "r").consume("tpm", tokens).no_cascade().await
            };
            limiter.set_limits(&scope, &[Limit::per_minute("tpm", 100)]).await.unwrap();
            ask(&limiter, 50).await.unwrap();
            ask(&other, 1).await.unwrap();
            limiter.set_limits(&scope, &[Limit::per_minute("tpm", 10_000)]).await.unwrap();
            let refused = exceeded(ask(&limiter, 499).await);
            assert_eq!(refused.retry_after, Some(Duration::from_millis(2_700)));
            clock.advance(Duration::from_millis(2_700));
            ask(&limiter, 499).await.unwrap();
            // A peek changes nothing.
            limiter.set_limits(&scope, &[Limit::per_minute("tpm", 7)]).await.unwrap();
            limiter.peek(&entity, "r").await.unwrap();
            assert_eq!(burst(&table, &entity).await, 10_000);
        }
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_change_is_written_once_and_not_with_every_refusal() {
    let table = Scripted::default();
    let clock = TestClock::at(at(T0));
    let limiter = limiter_on(table.clone(), &clock);
    let ask = |limit: u64| {
        limiter.acquire("u", "r").consume("tpm", 80).limits([Limit::per_minute("tpm", limit)])
    };
    ask(100).await.unwrap();
    exceeded(ask(100).await);
    table.calls();
    // A refusal that is remembered is no reason to leave the bucket as it is.
    let asks: Vec<_> = (0..20).map(|_| async { exceeded(ask(90).await) }).collect();
    futures_util::future::join_all(asks).await;
    assert_eq!(table.calls(), 1);
    assert_eq!(burst(&table.memory, "u").await, 90);
    // A limit that is only missing counts as full and is not written for a refusal.
    let limits = [Limit::per_minute("tpm", 90), Limit::per_minute("rpm", 5)];
    exceeded(limiter.acquire("u", "r").consume("tpm", 80).limits(limits).await);
    assert_eq!(table.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_stands_whatever_becomes_of_the_change() {
    for act in [Act::Throttle, Act::LoseReply] {
        let table = Scripted::default();
        let clock = TestClock::at(at(T0));
        let limiter = limiter_on(table.clone(), &clock);
        let ask = |limit: u64| {
            limiter.acquire("u", "r").consume("tpm", 80).limits([Limit::per_minute("tpm", limit)])
        };
        ask(100).await.unwrap();
        table.on_writes([act]);
        let refused = exceeded(ask(1_200).await);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(3)), "{act:?}");
        assert_eq!(exceeded(ask(1_200).await).retry_after, Some(Duration::from_secs(3)), "{act:?}");
        assert_eq!(burst(&table.memory, "u").await, 1_200, "{act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn buckets_of_a_process_without_its_store_are_changed_by_a_refusal() {
    let table = Scripted::default();
    let clock = TestClock::at(at(T0));
    let limiter = Limiter::builder(CompositeStore::with_table(table.clone()))
        .clock(clock.clone())
        .deadline(Duration::from_millis(100))
        .on_unavailable(OnUnavailable::Local)
        .breaker(BreakerConfig::never())
        .build();
    let ask = |tokens, limit: u64| {
        let limits = [Limit::per_minute("tpm", limit)];
        limiter.acquire("u", "r").consume("tpm", tokens).limits(limits).no_cascade()
    };
    table.always(Act::Hang);
    ask(50, 100).await.unwrap();
    exceeded(ask(500, 10_000).await);
    clock.advance(Duration::from_millis(2_700));
    ask(500, 10_000).await.unwrap();
}
