//! Requests that the store does not decide, and errors that are never degraded.

use std::time::Duration;

use sluicegate::error::SetupError;
use sluicegate::{AcquireError, AdjustError, LimiterBuilder, OnUnavailable};

use super::{
    Builder, CONNECT_DEADLINE, DEADLINE, FAILURES, ask, away, away_with, hung, is_unavailable,
    limiter, timed, was_not_asked, was_unanswered,
};
use crate::scripted::Act;
use crate::support::bucket;

#[tokio::test(start_paused = true)]
async fn unless_said_otherwise_an_outage_admits_after_the_deadline() {
    let (limiter, _, _) = hung(OnUnavailable::default()).await;
    let (permit, took) = timed(ask!(limiter, 1_000)).await;
    let permit = permit.unwrap();
    was_unanswered(&permit);
    assert_eq!(took, DEADLINE);
    assert_eq!((permit.remaining(), permit.cost().path), (vec![], None));
    let counters = limiter.counters();
    assert_eq!((counters.undecided_by_store.get(), counters.degraded.get()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn denying_policy_answers_after_the_deadline_and_grants_nothing() {
    let (limiter, _, _) = hung(OnUnavailable::Deny).await;
    let (denied, took) = timed(ask!(limiter, 1)).await;
    is_unavailable(denied);
    assert_eq!(took, DEADLINE);
    let counters = limiter.counters();
    assert_eq!((counters.undecided_by_store.get(), counters.degraded.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_first_connection_has_its_own_deadline() {
    let (limiter, table, _) = limiter(OnUnavailable::Deny);
    let slow = Duration::from_millis(1_500);
    table.always(Act::Slow(slow));
    let (cold, took) = timed(ask!(limiter, 1).deadline(DEADLINE)).await;
    is_unavailable(cold);
    assert_eq!(took, DEADLINE, "what is said of the call itself holds");
    let (warmed, took) = timed(limiter.warm_up()).await;
    warmed.unwrap();
    assert_eq!(took, slow);

    table.always(Act::Hang);
    let (connected, took) = timed(ask!(limiter, 1)).await;
    is_unavailable(connected);
    assert_eq!(took, DEADLINE);
    let (elsewhere, table, _) = super::limiter(OnUnavailable::Deny);
    table.always(Act::Hang);
    let (warmed, took) = timed(elsewhere.warm_up()).await;
    is_unavailable(warmed);
    assert_eq!(took, CONNECT_DEADLINE);
    let (first, took) = timed(ask!(elsewhere, 1)).await;
    is_unavailable(first);
    assert_eq!(took, CONNECT_DEADLINE);
}

/// A missing permission must not admit everything for ever.
#[tokio::test(start_paused = true)]
async fn answer_of_the_store_is_never_degraded() {
    let (limiter, table, _) = limiter(OnUnavailable::Allow);
    table.always(Act::Deny);
    for _ in 0..20 {
        let denied = ask!(limiter, 1).await;
        assert!(matches!(denied, Err(AcquireError::Setup(SetupError::Denied(_)))), "{denied:?}");
    }
    table.always(Act::Throttle);
    for _ in 0..20 {
        let (throttled, took) = timed(ask!(limiter, 1)).await;
        assert!(matches!(throttled, Err(AcquireError::Contended { .. })), "{throttled:?}");
        assert!(took <= DEADLINE, "{took:?}");
    }
    table.always(Act::Answer);
    ask!(limiter, 60).await.unwrap();
    for _ in 0..20 {
        let exceeded = ask!(limiter, 1).await;
        assert!(matches!(exceeded, Err(AcquireError::LimitExceeded(_))), "{exceeded:?}");
    }
    let counters = limiter.counters();
    let counts =
        (counters.undecided_by_store.get(), counters.degraded.get(), counters.outages.get());
    assert_eq!(counts, (0, 0, 0));
}

/// The deadline ends the throttled table's last answer: the table is available nevertheless.
#[tokio::test(start_paused = true)]
async fn a_throttled_table_whose_answer_is_cut_off_is_not_away() {
    let (limiter, table, _) = limiter(OnUnavailable::Allow);
    ask!(limiter, 1).await.unwrap();
    for acts in [[Act::Throttle, Act::Hang], [Act::LoseReply, Act::Throttle]] {
        table.on_writes(acts);
        table.always(Act::Throttle);
        let contended = ask!(limiter, 1).await;
        assert!(matches!(contended, Err(AcquireError::Contended { .. })), "{contended:?}");
    }
    assert_eq!(limiter.counters().undecided_by_store.get(), 0);
}

/// The table was throttled when it last answered: its silence is an outage nevertheless.
#[tokio::test(start_paused = true)]
async fn silence_after_throttling_is_an_outage() {
    for last in [Act::Throttle, Act::Deny] {
        let (limiter, table, _) = limiter(OnUnavailable::Allow);
        ask!(limiter, 1).await.unwrap();
        table.always(last);
        assert!(ask!(limiter, 1).await.is_err());
        table.always(Act::Hang);
        for _ in 0..FAILURES {
            was_unanswered(&ask!(limiter, 1).await.unwrap());
        }
        assert_eq!(limiter.counters().outages.get(), 1, "{last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_request_is_one_in_an_outage_too() {
    let (limiter, _, _) = away(OnUnavailable::Allow).await;
    for invalid in [ask!(limiter, 0).await, limiter.acquire("a#b", "r").consume("rpm", 1).await] {
        assert!(matches!(invalid, Err(AcquireError::InvalidRequest(_))), "{invalid:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_corrected_where_nothing_was_taken_and_that_is_said() {
    let (limiter, table, _) = away(OnUnavailable::Allow).await;
    let permit = ask!(limiter, 5).await.unwrap();
    table.always(Act::Answer);
    let degraded = permit.degraded().cloned();
    assert!(degraded.is_some());
    assert!(permit.adjust("no such name", 7).await.is_err());
    for corrected in [permit.adjust("rpm", 7).await.unwrap(), permit.release().await.unwrap()] {
        assert_eq!((corrected.degraded, corrected.write_units), (degraded.clone(), 0.0));
    }
    assert_eq!(table.calls(), 0);
    assert!(table.memory.stored_now(&bucket("u", "r")).is_none());
}

#[tokio::test(start_paused = true)]
async fn corrections_and_looks_in_an_outage_fail_at_once_and_can_be_repeated() {
    let (limiter, table, _) = limiter(OnUnavailable::Allow);
    let permit = ask!(limiter, 10).await.unwrap();
    table.always(Act::Hang);
    while limiter.counters().outages.get() == 0 {
        ask!(limiter, 1).await.unwrap();
    }
    table.calls();
    let ((adjusted, looked, elsewhere), took) = timed(async {
        (
            permit.adjust("rpm", 5).await,
            limiter.peek("u", "r").await,
            limiter.adjust("u", "r").by("rpm", 1).await,
        )
    })
    .await;
    assert!(matches!(adjusted, Err(AdjustError::Unavailable(_))), "{adjusted:?}");
    let elsewhere = elsewhere.unwrap_err();
    assert!(matches!(elsewhere, AdjustError::Unavailable(_)), "{elsewhere:?}");
    assert!(!elsewhere.may_have_been_made(), "{elsewhere:?}");
    is_unavailable(looked);
    assert_eq!((took, table.calls()), (Duration::ZERO, 0));

    table.always(Act::Answer);
    tokio::time::sleep(super::PROBED).await;
    permit.adjust("rpm", 5).await.unwrap();
    permit.release().await.unwrap();
    let stored = table.memory.stored_now(&bucket("u", "r")).unwrap();
    assert_eq!(stored.limits[&crate::support::name("rpm")].consumed.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn in_shadow_mode_an_outage_is_one_too() {
    let (limiter, _, _) = away_with(LimiterBuilder::shadow).await;
    was_not_asked(&ask!(limiter, 1).await.unwrap());
    let denying = |builder: Builder| builder.on_unavailable(OnUnavailable::Deny).shadow();
    is_unavailable(ask!(away_with(denying).await.0, 1).await);
}
