//! An outage costs a few calls their deadline, and the others nothing.

use std::time::Duration;

use sluicegate::settings::BreakerConfig;
use sluicegate::{Limiter, OnUnavailable};
use tokio::time::Instant;

use super::{
    CONNECT_DEADLINE, DEADLINE, FAILURES, PROBED, ask, away, hung, hung_with, is_unavailable,
    timed, was_not_asked, was_unanswered,
};
use crate::scripted::Act;
use crate::support::bucket;

#[tokio::test(start_paused = true)]
async fn a_few_wait_for_an_outage_and_then_nobody() {
    let (limiter, table, _) = hung(OnUnavailable::Allow).await;
    for _ in 0..FAILURES {
        let (permit, took) = timed(ask!(limiter, 1)).await;
        was_unanswered(&permit.unwrap());
        assert_eq!(took, DEADLINE);
    }
    table.calls();
    let ((), took) = timed(async {
        for _ in 0..1_000 {
            was_not_asked(&ask!(limiter, 1).await.unwrap());
        }
    })
    .await;
    assert_eq!((took, table.calls()), (Duration::ZERO, 0));
    let counters = limiter.counters();
    assert_eq!((counters.outages.get(), counters.degraded.get()), (1, 1_000 + 5));
}

#[tokio::test(start_paused = true)]
async fn rare_calls_find_an_outage_too() {
    let (limiter, _, _) = hung(OnUnavailable::Deny).await;
    for _ in 0..2 {
        is_unavailable(ask!(limiter, 1).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (_, took) = timed(ask!(limiter, 1)).await;
    assert_eq!(took, Duration::ZERO);
}

/// How long callers wait that do not wait for the deadline.
const PATIENCE: Duration = Duration::from_millis(20);

#[tokio::test(start_paused = true)]
async fn callers_that_leave_early_find_an_outage_too() {
    let (limiter, _, _) = hung(OnUnavailable::Deny).await;
    nobody_waits_after(&limiter, Duration::from_secs(2)).await;
    assert_eq!(limiter.counters().outages.get(), 1);
}

/// Callers that do not wait for the deadline get an answer after this time.
async fn nobody_waits_after(limiter: &Limiter, time: Duration) {
    let until = Instant::now() + time;
    while tokio::time::timeout(PATIENCE, ask!(limiter, 1).into_future()).await.is_err() {
        assert!(Instant::now() < until, "callers still wait");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_leave_early_end_a_trial_that_hangs() {
    let (limiter, table, _) = away(OnUnavailable::Deny).await;
    table.always(Act::Answer);
    tokio::time::sleep(PROBED).await;
    table.always(Act::Hang);
    nobody_waits_after(&limiter, 2 * PATIENCE).await;
    tokio::time::sleep(2 * DEADLINE).await;
    let (refused, took) = timed(ask!(limiter, 1)).await;
    is_unavailable(refused);
    assert_eq!(took, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_probes_alone_is_unavailable_to_those_who_wait() {
    let (limiter, table, _) = hung(OnUnavailable::Deny).await;
    table.always(Act::Answer);
    table.on_writes(std::iter::repeat_n(Act::Hang, 1_000));
    let mut asked = 0;
    while limiter.counters().outages.get() == 0 {
        asked += 1;
        assert!(asked <= FAILURES, "the breaker stays closed");
        let patient = async { is_unavailable(ask!(limiter, 1).await) };
        let leaves = tokio::time::timeout(PATIENCE, ask!(limiter, 1).into_future());
        let ((), left) = tokio::join!(patient, leaves);
        left.unwrap_err();
        tokio::time::sleep(PROBED).await;
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_leave_early_cost_a_probe_now_and_then() {
    let (limiter, table, _) = hung(OnUnavailable::Deny).await;
    table.always(Act::Answer);
    table.on_writes(std::iter::repeat_n(Act::Hang, 1_000));
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        let left = tokio::time::timeout(PATIENCE, ask!(limiter, 1).into_future()).await;
        left.unwrap_err();
    }
    // Four probes a second, and the repetitions of one write.
    let calls = table.calls();
    assert!((20..=60).contains(&calls), "{calls}");
}

#[tokio::test(start_paused = true)]
async fn callers_that_leave_early_find_no_outage_of_a_slow_store() {
    let (limiter, table, _) = hung(OnUnavailable::Deny).await;
    table.always(Act::Slow(5 * PATIENCE));
    for _ in 0..1_000 {
        let answer = tokio::time::timeout(PATIENCE, ask!(limiter, 1).into_future()).await;
        assert!(answer.is_err() || answer.is_ok_and(|granted| granted.is_ok()));
    }
    assert_eq!(limiter.counters().outages.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn while_it_hangs_it_is_probed_at_intervals_without_requests() {
    let (_limiter, table, _) = away(OnUnavailable::Allow).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let probes = table.calls();
    // One every 250 ms, and eight at most that hang for two seconds.
    assert!((230..=241).contains(&probes), "{probes}");
}

#[tokio::test(start_paused = true)]
async fn the_store_decides_again_as_soon_as_a_probe_was_answered() {
    for policy in [OnUnavailable::Allow, OnUnavailable::Deny] {
        let (limiter, table, _) = away(policy).await;
        // Long enough for hung probes to pile up.
        tokio::time::sleep(Duration::from_secs(30)).await;
        table.always(Act::Answer);
        tokio::time::sleep(PROBED).await;
        table.calls();
        let permit = ask!(limiter, 1).await.unwrap();
        assert!(permit.degraded().is_none());
        let stored = table.memory.stored_now(&bucket("u", "r")).unwrap();
        assert_eq!(stored.limits[&crate::support::name("rpm")].consumed.get(), 1_000);
        assert!(ask!(limiter, 1).await.unwrap().degraded().is_none());
        table.calls();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(table.calls(), 0, "an available store is not probed");
    }
}

/// The probe reads; only a request shows if the store can be used.
#[tokio::test(start_paused = true)]
async fn a_store_that_only_answers_probes_costs_one_call_its_deadline_now_and_then() {
    let (limiter, table, _) = away(OnUnavailable::Allow).await;
    table.always(Act::Answer);
    tokio::time::sleep(PROBED).await;
    // The bucket is read, and the write hangs.
    table.on_writes(std::iter::repeat_n(Act::Hang, 1_000));
    let mut slow = 0;
    for _ in 0..200 {
        let (permit, took) = timed(ask!(limiter, 1)).await;
        assert!(permit.unwrap().degraded().is_some());
        slow += u32::from(took > Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!((2..=9).contains(&slow), "{slow}: one every half a second");
    assert_eq!(limiter.counters().outages.get(), 1, "one outage, said once");
}

/// While one call finds out, the others do not wait; if it hangs, it is overtaken.
#[tokio::test(start_paused = true)]
async fn one_call_is_on_trial_at_a_time() {
    let (limiter, table, _) = away(OnUnavailable::Allow).await;
    table.always(Act::Answer);
    tokio::time::sleep(PROBED).await;
    table.on_reads([Act::Hang]);
    let patient = limiter.clone();
    let hung = tokio::spawn(async move {
        ask!(patient, 1).deadline(Duration::from_secs(60)).await.unwrap().degraded().is_some()
    });
    tokio::task::yield_now().await;
    let (permit, took) = timed(ask!(limiter, 1)).await;
    was_not_asked(&permit.unwrap());
    assert_eq!(took, Duration::ZERO);
    tokio::time::sleep(PROBED * 3).await;
    assert!(ask!(limiter, 1).await.unwrap().degraded().is_none());
    // The store was asked again on behalf of both.
    assert!(!hung.await.unwrap());
}

/// The process's runtime ended with the task in it, as between two tests or two invocations.
#[test]
fn a_new_runtime_looks_for_the_store_again() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
    };
    let (limiter, table, _) = runtime().block_on(away(OnUnavailable::Allow));
    table.always(Act::Answer);
    let found = |limiter: sluicegate::Limiter| async move {
        for n in 0_u32.. {
            if ask!(limiter, 1).await.unwrap().degraded().is_none() {
                return n;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        unreachable!("the loop has no end");
    };
    // After twenty of its rounds the task is taken for dead.
    let n = runtime()
        .block_on(async { tokio::time::timeout(Duration::from_secs(60), found(limiter)).await });
    assert!(n.unwrap() > 0);
}

#[tokio::test(start_paused = true)]
async fn a_limiter_that_is_dropped_is_looked_for_by_nobody() {
    let (limiter, table, _) = away(OnUnavailable::Allow).await;
    drop(limiter);
    tokio::time::sleep(CONNECT_DEADLINE * 2).await;
    table.calls();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(table.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_breaker_can_be_set_and_turned_off() {
    let breaker =
        BreakerConfig { failures: 1, probe_every: Duration::ZERO, ..BreakerConfig::default() };
    let (eager, _, _) = hung_with(|builder| builder.breaker(breaker)).await;
    let _ = ask!(eager, 1).deadline(DEADLINE).await;
    was_not_asked(&ask!(eager, 1).await.unwrap());
    let never = BreakerConfig::never();
    let (patient, table, _) = hung_with(|builder| builder.breaker(never)).await;
    for _ in 0..50 {
        let (permit, took) = timed(ask!(patient, 1).deadline(DEADLINE)).await;
        was_unanswered(&permit.unwrap());
        assert_eq!(took, DEADLINE);
    }
    table.always(Act::Answer);
    assert!(ask!(patient, 1).await.unwrap().degraded().is_none());
}

/// Each request by a clone of its own.
#[tokio::test(start_paused = true)]
async fn clone_made_for_one_request_finds_the_outage_and_others_its_end() {
    let (limiter, table, _) = hung(OnUnavailable::Allow).await;
    let once = async || ask!(limiter.clone(), 1).await.unwrap().degraded().is_some();
    for _ in 0..FAILURES {
        assert!(once().await);
    }
    assert_eq!(limiter.counters().outages.get(), 1);
    table.always(Act::Answer);
    tokio::time::sleep(PROBED).await;
    assert!(!once().await, "a task probes the store");
}

#[tokio::test(start_paused = true)]
async fn probes_can_be_as_rare_as_anybody_says() {
    let breaker =
        BreakerConfig { failures: 1, probe_every: Duration::MAX, ..BreakerConfig::default() };
    let (rare, table, _) = hung_with(|builder| builder.breaker(breaker)).await;
    let _ = ask!(rare, 1).deadline(DEADLINE).await;
    table.always(Act::Answer);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(ask!(rare, 1).await.unwrap().degraded().is_none());
}

/// Even if a connection may take long: probes that hang are spread over that time.
#[tokio::test(start_paused = true)]
async fn probes_that_hang_for_long_leave_room_for_others() {
    let minute = Duration::from_secs(60);
    let (limiter, table, _) = hung_with(|builder| builder.connect_deadline(minute)).await;
    for _ in 0..FAILURES {
        ask!(limiter, 1).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    table.always(Act::Answer);
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(ask!(limiter, 1).await.unwrap().degraded().is_none());
}

/// Probes that hang end at the moment at which the next round begins.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_of_a_long_outage_goes_on_without_requests() {
    let probe_every = Duration::from_millis(1);
    let breaker = BreakerConfig { failures: 1, probe_every, ..BreakerConfig::default() };
    let (limiter, table, _) =
        hung_with(|builder| builder.breaker(breaker).connect_deadline(8 * probe_every)).await;
    was_unanswered(&ask!(limiter, 1).await.unwrap());
    tokio::time::sleep(Duration::from_secs(3)).await;
    table.calls();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let probes = table.calls();
    assert!(probes > 0, "the task ended with the limiter alive");
    drop(limiter);
    tokio::time::sleep(Duration::from_millis(200)).await;
    table.calls();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(table.calls(), 0, "the task ends with the limiter");
}
