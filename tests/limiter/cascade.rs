//! A child and its parent, all or nothing.

use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::settings::{CascadeMode, StoreSettings};
use sluicegate::types::LimitsScope;
use sluicegate::{
    AcquireError, AdjustError, CompositeStore, EntityId, LeaseSettings, Limit, Limiter, TestClock,
};

use sluicegate_testkit::{EngineKind, RunningEngine};

use crate::scripted::{Act, Scripted};
use crate::support::limiter as make;
use crate::support::{
    Engine, T0, at, bucket, builder, limiter_as, limiter_on, name, on_every_store, patient,
    with_settings,
};

const MODES: [CascadeMode; 2] = [CascadeMode::Transaction, CascadeMode::Compensating];

/// Tokens of a limit as they are stored, whole.
async fn tokens<E: Engine>(table: &E, entity: &str) -> i64 {
    let stored = table.image(&bucket(entity, "r")).await.unwrap();
    stored.limits[&name("rpm")].tokens.get() / 1_000
}

async fn another_writer_comes_between<E: Engine>(table: E) {
    for (n, mode) in MODES.into_iter().enumerate() {
        let clock = TestClock::at(at(T0));
        let settings = || StoreSettings { cascade_mode: mode, ..StoreSettings::default() };
        let (limiter, other) = (
            with_settings(table.clone(), &clock, settings()),
            with_settings(table.clone(), &clock, settings()),
        );
        let (child, parent) = (format!("child-{n}"), format!("parent-{n}"));
        let limits = || [Limit::quota("rpm", 35)];
        let ask = |tokens| {
            limiter.acquire(&child, "r").consume("rpm", tokens).limits(limits()).cascade_to(&parent)
        };
        // 30 and 30, known to the limiter.
        ask(5).await.unwrap();
        other.acquire(&parent, "r").consume("rpm", 1).limits(limits()).no_cascade().await.unwrap();
        let permit = ask(5).await.unwrap();
        assert_eq!(
            (tokens(&table, &child).await, tokens(&table, &parent).await),
            (25, 24),
            "{mode:?}"
        );

        permit.adjust("rpm", 2).await.unwrap();
        assert_eq!(
            (tokens(&table, &child).await, tokens(&table, &parent).await),
            (23, 22),
            "{mode:?}"
        );
        permit.release().await.unwrap();
        assert_eq!(
            (tokens(&table, &child).await, tokens(&table, &parent).await),
            (30, 29),
            "{mode:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_are_taken_from_although_another_writer_comes_between() {
    on_every_store!(another_writer_comes_between);
}

async fn corrected_without_a_lease<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let limiter = make(table.clone(), &clock);
    let limits = || [Limit::quota("rpm", 35)];
    let adjust = |tokens| {
        limiter.adjust("child", "r").by("rpm", tokens).limits(limits()).cascade_to("parent")
    };
    // Neither bucket is there: both are made, and one that holds less than a full one.
    adjust(5).await.unwrap();
    let left = async || (tokens(&table, "child").await, tokens(&table, "parent").await);
    assert_eq!(left().await, (30, 30));
    limiter.adjust("child", "r").by_milli("rpm", 32_000).no_cascade().await.unwrap();
    assert_eq!(left().await, (-2, 30), "never refused");
    adjust(-3).await.unwrap();
    assert_eq!(left().await, (1, 33));

    // One that another process changed meanwhile.
    make(table.clone(), &clock).adjust("child", "r").by("rpm", -10).no_cascade().await.unwrap();
    limiter.adjust("child", "r").by("rpm", -1).no_cascade().await.unwrap();
    assert_eq!(left().await, (12, 33));
    for amounts in [&[][..], &[("rpm", 0)], &[("rpm", 1), ("rpm", 1)], &[("other", 1)]] {
        let mut request = limiter.adjust("child", "r");
        for (limit, tokens) in amounts {
            request = request.by(*limit, *tokens);
        }
        let error = request.await.unwrap_err();
        assert!(matches!(error, AdjustError::InvalidRequest(_)), "{amounts:?}: {error:?}");
    }
    assert_eq!(left().await, (12, 33));
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_are_corrected_without_a_lease() {
    on_every_store!(corrected_without_a_lease);
}

async fn a_short_parent<E: Engine>(table: E) {
    for (n, mode) in MODES.into_iter().enumerate() {
        let clock = TestClock::at(at(T0));
        let settings = StoreSettings { cascade_mode: mode, ..StoreSettings::default() };
        let limiter = with_settings(table.clone(), &clock, settings);
        let (child, parent) = (format!("child-{n}"), format!("parent-{n}"));
        let ask = |tokens| {
            let request = limiter.acquire(&child, "r").consume("rpm", tokens).cascade_to(&parent);
            request
                .limits([Limit::per_minute("rpm", 60)])
                .parent_limits([Limit::per_minute("rpm", 10)])
        };
        ask(8).await.unwrap();
        for later in [0, 2_000] {
            // From the images of a moment ago, and from newer ones.
            clock.advance(Duration::from_millis(later));
            let refused = ask(5).await.unwrap_err();
            let AcquireError::LimitExceeded(refused) = refused else { panic!("{refused:?}") };
            let violated: Vec<_> =
                refused.violations().map(|limit| limit.entity.as_str()).collect();
            assert_eq!((violated, refused.limits.len()), (vec![parent.as_str()], 2), "{mode:?}");
            // The parent earns ten a minute: three more take 18 s.
            let wait = Duration::from_millis(18_000 - later);
            assert_eq!(refused.retry_after, Some(wait), "{mode:?}");
        }
        let left = limiter
            .peek(&child, "r")
            .limits([Limit::per_minute("rpm", 60)])
            .no_cascade()
            .await
            .unwrap();
        assert_eq!(left[0].available.get(), 54_000, "{mode:?}: the child is as it was");
        clock.advance(Duration::from_millis(16_000));
        ask(5).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_is_short_refuses_and_leaves_the_child_alone() {
    on_every_store!(a_short_parent);
}

/// Another process has removed a limit of the parent. This one finds out by its next write.
#[tokio::test]
async fn a_limit_that_the_parent_lost_is_not_asked_of_it() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    for (n, mode) in MODES.into_iter().enumerate() {
        let (table, clock) = (engine.create_table().await, TestClock::at(at(T0)));
        let table = DynamoTable::new(engine.client(), table);
        let settings = || StoreSettings { cascade_mode: mode, ..StoreSettings::default() };
        let [here, elsewhere] = [(); 2].map(|()| limiter_as(table.clone(), &clock, settings()));
        let scope = |entity: &str| LimitsScope::Entity(EntityId::new(entity).unwrap());
        let limits = || ["rpm", "tpm"].map(|limit| Limit::per_minute(limit, 60));
        for entity in ["u", "team"] {
            here.set_limits(&scope(entity), &limits()).await.unwrap();
        }
        let ask = async |limiter: &Limiter| {
            let request = limiter.acquire("u", "r").consume("rpm", 1).consume("tpm", 1);
            request.cascade_to("team").await
        };
        ask(&here).await.unwrap();
        ask(&elsewhere).await.unwrap();
        elsewhere.delete_limits(&scope("team"), &[name("rpm")]).await.unwrap();
        clock.advance(Duration::from_secs(2));
        ask(&elsewhere).await.unwrap();
        clock.advance(Duration::from_secs(2));
        let permit = ask(&here).await.unwrap();
        let left = permit.remaining();
        let of_team = left.iter().filter(|status| status.entity.as_str() == "team");
        let of_team: Vec<_> = of_team.map(|status| status.limit.as_str()).collect();
        assert_eq!(of_team, ["tpm"], "{n}");
    }
    engine.stop().await;
}

/// The write of one bucket is made, and its answer does not come in time.
#[tokio::test(start_paused = true)]
async fn a_correction_without_a_permit_reaches_the_parent_although_an_answer_is_lost() {
    for (acts, in_doubt, other) in [
        ([Act::Slow(Duration::from_secs(1)), Act::Answer], "child", "parent"),
        ([Act::Answer, Act::Slow(Duration::from_secs(1))], "parent", "child"),
    ] {
        let (table, clock) = (Scripted::default(), TestClock::at(at(T0)));
        let store = CompositeStore::with_table(table.clone());
        let limiter = Limiter::builder(store).clock(clock.clone());
        let limiter = limiter.deadline(Duration::from_millis(100)).build();
        let request = limiter.acquire("child", "r").consume("rpm", 5);
        request.limits([Limit::quota("rpm", 35)]).cascade_to("parent").await.unwrap();
        table.on_writes(acts);
        let adjust = limiter.adjust("child", "r").by("rpm", -3).cascade_to("parent");
        let error = adjust.await.unwrap_err();
        let AdjustError::Partial { corrected, failed, .. } = &error else { panic!("{error:?}") };
        assert_eq!((corrected.as_str(), failed.as_str()), (other, in_doubt), "{error:?}");
        assert!(error.may_have_been_made(), "{error:?}");
        assert_eq!(tokens(&table.memory, other).await, 33);
    }
}

/// The request names none of the parent's limits, so nothing is taken there. A correction names one.
async fn charged_by_a_correction<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let leasing = builder(table.clone(), &clock).leasing(LeaseSettings::default());
    let limiters = [("u", make(table.clone(), &clock)), ("leased", patient(leasing))];
    for (entity, limiter) in limiters {
        let parent = format!("parent of {entity}");
        let consumed = async |entity: &str| {
            let stored = table.image(&bucket(entity, "r")).await?;
            Some(stored.limits[&name("tpm")].consumed.get() / 1_000)
        };
        // The second grant of the limiter that leases is one of held tokens.
        for n in 1..3 {
            let request = limiter.acquire(entity, "r").consume("rpm", 1);
            let limits = ["rpm", "tpm"].map(|limit| Limit::quota(limit, 350));
            let request = request.limits(limits).parent_limits([Limit::quota("tpm", 35)]);
            let permit = request.cascade_to(&parent).await.unwrap();
            permit.adjust("tpm", 3).await.unwrap();
            assert_eq!(consumed(entity).await, Some(n * 3), "{entity}");
            assert_eq!(consumed(&parent).await, Some(n * 3), "{parent}");
        }
        let request = limiter.acquire(entity, "r").consume("rpm", 1);
        request.no_cascade().await.unwrap().adjust("tpm", 1).await.unwrap();
        assert_eq!(consumed(&parent).await, Some(6), "{parent}");
    }
}

/// Nothing is given back to the parent, so the error is that of the child.
#[tokio::test(start_paused = true)]
async fn a_parent_that_was_not_charged_has_no_part_in_a_failed_release() {
    let (table, clock) = (Scripted::default(), TestClock::at(at(T0)));
    let limiter = limiter_on(table.clone(), &clock);
    let request = limiter.acquire("u", "r").consume("rpm", 1).limits([Limit::quota("rpm", 9)]);
    let request = request.parent_limits([Limit::quota("tpm", 35)]).cascade_to("team");
    let permit = request.await.unwrap();
    table.on_writes([Act::Deny]);
    let failed = permit.give_back().await;
    assert!(matches!(failed, Err(AdjustError::Setup(_))), "{failed:?}");
    permit.give_back().await.unwrap();
    assert_eq!(tokens(&table.memory, "u").await, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correction_charges_a_parent_that_the_acquire_did_not() {
    on_every_store!(charged_by_a_correction);
}

/// A lane that had no answer keeps its older image of the child to itself. Tokens that came back
/// meanwhile by another lane can be taken.
#[tokio::test(start_paused = true)]
async fn a_lane_without_an_answer_does_not_spread_an_older_image() {
    let (table, clock) = (Scripted::default(), TestClock::at(at(T0)));
    let limiter = limiter_on(table.clone(), &clock);
    let ask =
        |tokens| limiter.acquire("u", "r").consume("rpm", tokens).limits([Limit::quota("rpm", 10)]);
    let permit = ask(10).no_cascade().await.unwrap();
    table.on_reads([Act::Hang]);
    let of_both = ask(1).parent_limits([Limit::quota("rpm", 100)]).cascade_to("team");
    let given_back = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        permit.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(401)).await;
        ask(1).no_cascade().await
    };
    let (_, granted) = tokio::join!(of_both.into_future(), given_back);
    granted.unwrap();
}
