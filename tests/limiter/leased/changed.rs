//! Limits that change while a process holds tokens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate::leasing::Accounting;
use sluicegate::types::LimitsScope;
use sluicegate::{LeaseMode, Limit};
use tokio::time::{Instant, sleep};

use super::SECOND;
use super::configured::{
    Configured, LOWERED, MINUTE, MODES, PACE, admitted, after_lowering, per_minute,
};
use crate::support::{Engine as _, Shared as _, bucket, name};

#[tokio::test(start_paused = true)]
async fn leased_steady_pace_follows_stored_limits() {
    for mode in MODES {
        for is_prepared in [false, true] {
            let table = Configured::new();
            let limiter = table.limiter(mode);
            table.set_limits(&[("rps", per_minute(60_000))]);
            let ask = || limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
            let call = ask().prepare().await.unwrap();
            let lower = || table.set_limits(&[("rps", per_minute(60))]);
            let admitted = if is_prepared {
                after_lowering(&table, lower, async || call.acquire().await.is_ok()).await
            } else {
                after_lowering(&table, lower, async || ask().await.is_ok()).await
            };
            let case = format!("{mode:?}, prepared {is_prepared}: {admitted} admitted");
            println!("{case}, {} lookups", table.lookups());
            assert!(LOWERED.contains(&admitted), "{case}");
        }
    }
}

/// Limits in a request: the newest request's limits hold.
#[tokio::test(start_paused = true)]
async fn leased_steady_pace_follows_limits_of_requests() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        let per_minute = AtomicU64::new(60_000);
        let ask = async || {
            let limits = [Limit::per_minute("rps", per_minute.load(Ordering::Relaxed))];
            let request = limiter.acquire("u0", "r").consume("rps", 1).limits(limits);
            request.no_cascade().await.is_ok()
        };
        let lower = || per_minute.store(60, Ordering::Relaxed);
        let admitted = after_lowering(&table, lower, ask).await;
        assert!(LOWERED.contains(&admitted), "{mode:?}: {admitted} admitted");
        assert_eq!(table.lookups(), 0);
    }
}

/// They follow at once, also where a commit is the only write.
#[tokio::test(start_paused = true)]
async fn leased_requests_by_names_follow_their_newest_limits_at_once() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        let ask = async |per_minute| {
            let limits = [Limit::per_minute("rps", per_minute)];
            let request = limiter.acquire("u0", "r").consume("rps", 1).limits(limits);
            request.no_cascade().await.is_ok()
        };
        assert!(admitted(5 * SECOND, async || ask(60_000).await).await > 600);
        admitted(2 * SECOND, async || ask(60).await).await;
        let after = admitted(MINUTE, async || ask(60).await).await;
        assert!(LOWERED.contains(&after), "{mode:?}: {after} admitted");
    }
}

/// A call that is prepared anew brings its limits, though its tokens are there already.
#[tokio::test(start_paused = true)]
async fn leased_prepared_anew_follows_its_limits() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        let prepare = async |per_minute| {
            let limits = [Limit::per_minute("rps", per_minute)];
            let request = limiter.acquire("u0", "r").consume("rps", 1).limits(limits);
            request.no_cascade().prepare().await.unwrap()
        };
        let call = prepare(60_000).await;
        assert!(admitted(5 * SECOND, async || call.acquire().await.is_ok()).await > 600);
        let call = prepare(60).await;
        let ask = async || call.acquire().await.is_ok();
        admitted(2 * SECOND, &ask).await;
        let admitted = admitted(MINUTE, &ask).await;
        assert!(LOWERED.contains(&admitted), "{mode:?}: {admitted} admitted");
    }
}

/// The bucket has the versions of the deleted level, as if this process had an old copy.
#[tokio::test(start_paused = true)]
async fn leased_follows_a_level_that_was_deleted_by_hand() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        let own = LimitsScope::Entity(bucket("u0", "r").entity);
        table.set_limits(&[("rps", per_minute(60))]);
        table.set_limits_of(own.clone(), &[("rps", per_minute(60_000))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        let delete = || drop(table.limits.lock().unwrap().remove(&own));
        let after = after_lowering(&table, delete, async || call.acquire().await.is_ok()).await;
        assert!(LOWERED.contains(&after), "{mode:?}: {after} admitted");
    }
}

/// The entity that prepared the call has larger limits of its own. They are not those of the others.
#[tokio::test(start_paused = true)]
async fn leased_prepared_for_others_brings_them_no_stored_limits() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        table.set_limits(&[("rps", per_minute(60))]);
        let own = LimitsScope::Entity(bucket("u0", "r").entity);
        table.set_limits_of(own, &[("rps", per_minute(60_000))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        for _ in 0..3 {
            // The second one finds nothing held, and the first one's write is in flight.
            let second = async {
                sleep(Duration::from_millis(2)).await;
                drop(call.try_acquire_for("u1"));
            };
            let (first, ()) = tokio::join!(call.acquire_for("u1"), second);
            drop(first.unwrap());
            sleep(5 * SECOND).await;
            let stored = table.counted.memory().stored(&bucket("u1", "r")).await.unwrap();
            assert_eq!(stored.limits[&name("rps")].rule, per_minute(60), "{mode:?}");
        }
    }
}

/// The permits are settled when the process has forgotten the bucket, and the stored limits.
#[tokio::test(start_paused = true)]
async fn leased_prepared_for_others_keeps_all_limits_of_a_forgotten_bucket() {
    for is_released in [false, true] {
        let table = Configured::new();
        let limiter = table.limiter(LeaseMode::default());
        table.set_limits(&[("rps", per_minute(60_000)), ("tps", per_minute(60_000))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        let ask = async || drop(call.acquire_for("u1").await.unwrap());
        let permit = loop {
            if let Some(permit) = call.try_acquire_for("u1") {
                break permit;
            }
            ask().await;
        };
        if is_released {
            sleep(5 * SECOND).await;
            permit.release();
        } else {
            sleep(2 * MINUTE).await;
            permit.into_permit().adjust("rps", -1).await.unwrap();
        }
        for _ in 0..50 {
            ask().await;
            sleep(PACE).await;
        }
        assert!(call.try_acquire_for("u1").is_some(), "released {is_released}");
    }
}

/// The second request names all of its limits, so it reads none, and enters while the first one's
/// write is prepared.
#[tokio::test(start_paused = true)]
async fn leased_requests_of_stored_limits_keep_them_beside_others() {
    for mode in MODES {
        for millis in 0..20 {
            let table = Configured::new();
            let limiter = table.limiter(mode);
            table.set_limits(&[("tps", per_minute(60_000))]);
            let rps = [Limit::per_minute("rps", 60_000)];
            let request = || limiter.acquire("u0", "r").limits(rps.clone()).no_cascade();
            let both = request().consume("rps", 1).consume("tps", 1);
            let one = async {
                sleep(Duration::from_millis(millis)).await;
                request().consume("rps", 1).await
            };
            let (both, one) = tokio::join!(both, one);
            assert!(both.is_ok() && one.is_ok(), "{mode:?}, {millis} ms: {both:?} {one:?}");
        }
    }
}

/// Once a minute and level, however many renewals there are.
#[tokio::test(start_paused = true)]
async fn leased_renewals_look_limits_up_once_a_minute() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        table.set_limits(&[("rps", per_minute(60_000))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        table.lookups();
        admitted(10 * MINUTE, async || call.acquire().await.is_ok()).await;
        let lookups = table.lookups();
        // Four levels.
        assert!((36..=44).contains(&lookups), "{mode:?}: {lookups} lookups");
    }
}

/// Raised limits reach it as well.
#[tokio::test(start_paused = true)]
async fn leased_steady_pace_follows_raised_limits() {
    for mode in MODES {
        let table = Configured::new();
        let limiter = table.limiter(mode);
        table.set_limits(&[("rps", per_minute(600))]);
        let call = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
        let call = call.prepare().await.unwrap();
        let ask = async || call.acquire().await.is_ok();
        let before = admitted(MINUTE, &ask).await;
        table.set_limits(&[("rps", per_minute(60_000))]);
        admitted(MINUTE + 5 * SECOND, &ask).await;
        let after = admitted(MINUTE, &ask).await;
        println!("{mode:?}: {before} before, {after} after");
        assert!(before <= 1_200, "{mode:?}: {before}");
        // A request every 7 ms, each a little later where it waits for the table.
        assert!(after >= 7_000, "{mode:?}: {after}");
    }
}

/// An operator deletes a limit of which the process holds tokens. The stream of changes shows the
/// last counter of the limit, so the counter must be even with what was granted.
#[tokio::test(start_paused = true)]
async fn a_deleted_limit_is_settled_before_it_leaves_the_bucket() {
    for accounting in [Accounting::AtLease, Accounting::AtSettle] {
        let table = Configured::new();
        table.set_limits(&[("rps", per_minute(60_000)), ("tps", per_minute(60_000))]);
        let limiter = table.limiter(LeaseMode::Strict(accounting));
        let both = async || {
            let request = limiter.acquire("u0", "r").consume("rps", 1).consume("tps", 1);
            request.no_cascade().await.is_ok()
        };
        let mut granted = admitted(5 * SECOND, &both).await;
        table.set_limits(&[("rps", per_minute(60_000))]);
        let deleted = [(name("tps"), 2)].into();
        table.limits.lock().unwrap().get_mut(&LimitsScope::System).unwrap().deleted = deleted;
        let tokens = async || {
            let stored = table.counted.memory().image(&bucket("u0", "r")).await.unwrap();
            stored.limits.get(&name("tps")).map(|balance| balance.consumed.get() / 1_000)
        };
        let (mut last, until) = (None, Instant::now() + 3 * MINUTE);
        while let Some(consumed) = tokens().await {
            assert!(Instant::now() < until, "{accounting:?}: the limit stays");
            last = Some(consumed);
            granted += i64::from(both().await);
            let request = limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
            assert!(request.await.is_ok());
            sleep(PACE).await;
        }
        assert_eq!(last, Some(granted.into()), "{accounting:?}");
    }
}

/// Permits that were granted before go on giving tokens of the deleted limit back.
#[tokio::test(start_paused = true)]
async fn refunds_of_a_deleted_limit_hold_up_no_request() {
    let table = Configured::new();
    table.set_limits(&[("rps", per_minute(60_000)), ("tps", per_minute(60_000))]);
    let limiter = table.limiter(LeaseMode::Strict(Accounting::AtLease));
    let ask = || limiter.acquire("u0", "r").consume("rps", 1).no_cascade();
    let mut permits = Vec::new();
    let until = Instant::now() + 50 * SECOND;
    while Instant::now() < until {
        permits.extend(ask().consume("tps", 1).await);
        sleep(SECOND / 500).await;
    }
    table.set_limits(&[("rps", per_minute(60_000))]);
    let deleted = [(name("tps"), 2)].into();
    table.limits.lock().unwrap().get_mut(&LimitsScope::System).unwrap().deleted = deleted;
    let refunds = async {
        for permit in permits {
            permit.adjust_milli("tps", -1_000).await.unwrap();
            sleep(SECOND / 500).await;
        }
    };
    let requests = async {
        for _ in 0..5_000 {
            ask().deadline(SECOND).await.unwrap();
            sleep(PACE).await;
        }
    };
    futures_util::future::join(refunds, requests).await;
}
