//! Parents that change while a process holds tokens.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate::leasing::PreparedPermit;
use sluicegate::{LeaseMode, LeaseSettings};
use tokio::time::sleep;

use super::configured::{Configured, MINUTE, MODES, admitted, per_minute};
use super::{SECOND, leased};
use crate::simulated::Simulated;

/// A parent that is stored later, and another one after it: held and requested tokens come from the
/// same buckets.
#[tokio::test(start_paused = true)]
async fn leased_prepared_follows_a_changed_parent() {
    for mode in MODES {
        for tries in [false, true] {
            let table = Configured::new();
            let limiter = table.limiter(mode);
            table.set_limits(&[("rps", per_minute(60_000))]);
            let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
            let ask = async || match call.try_acquire() {
                Some(_) => true,
                None if tries && fastrand::u8(..8) > 0 => false,
                None => call.acquire().await.is_ok(),
            };
            let case = format!("{mode:?}, tries {tries}");
            assert!(admitted(5 * SECOND, &ask).await > 100, "{case}");
            let mut charged = Vec::new();
            for parent in ["team", "org"] {
                table.put_entity("u0", parent);
                admitted(MINUTE + SECOND, &ask).await;
                limiter.flush(SECOND).await;
                let before = [table.consumed("u0").await, table.consumed(parent).await];
                let admitted = admitted(30 * SECOND, &ask).await;
                limiter.flush(SECOND).await;
                let after = [table.consumed("u0").await, table.consumed(parent).await];
                assert!(admitted > 2_000, "{case}, {parent}: {admitted}");
                assert_eq!(after, before.map(|before| before + admitted), "{case}, {parent}");
                charged.push(table.consumed("team").await);
            }
            assert!(charged[1] > charged[0], "for up to a minute");
            let team = table.consumed("team").await;
            admitted(10 * SECOND, &ask).await;
            limiter.flush(SECOND).await;
            assert_eq!(table.consumed("team").await, team, "{case}");
        }
    }
}

/// Permits of an earlier result are given back to the buckets that they were taken from.
#[tokio::test(start_paused = true)]
async fn leased_ticket_of_an_earlier_parent_is_given_back_to_it() {
    let table = Configured::new();
    let limiter = table.limiter(LeaseMode::default());
    table.set_limits(&[("rps", per_minute(60_000))]);
    table.put_entity("u0", "team");
    let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
    let ask = async || call.acquire().await.is_ok();
    let mut taken = 1 + admitted(5 * SECOND, &ask).await;
    let ticket = loop {
        match call.try_acquire() {
            Some(ticket) => break ticket,
            None => taken += i64::from(ask().await),
        }
    };
    table.put_entity("u0", "org");
    taken += admitted(MINUTE + SECOND, &ask).await;
    ticket.release();
    taken -= 1;
    assert!(limiter.shutdown(SECOND).await.unsettled.is_empty());
    let parents = table.consumed("team").await + table.consumed("org").await;
    assert_eq!([table.consumed("u0").await, parents], [taken, taken]);
}

/// Each entity has its own parent.
#[tokio::test(start_paused = true)]
async fn leased_prepared_for_others_follows_their_parents() {
    let table = Configured::new();
    let limiter = table.limiter(LeaseMode::default());
    table.set_limits(&[("rps", per_minute(60_000))]);
    table.put_entity("u0", "team");
    let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
    let ask = async || call.acquire_for("u1").await.is_ok();
    let first = admitted(5 * SECOND, &ask).await;
    table.put_entity("u1", "org");
    admitted(MINUTE + SECOND, &ask).await;
    limiter.flush(SECOND).await;
    let before = table.consumed("org").await;
    let second = admitted(5 * SECOND, &ask).await;
    limiter.flush(SECOND).await;
    assert!(first > 400 && second > 400, "{first}, {second}");
    assert_eq!(table.consumed("org").await, before + second);
    assert_eq!(table.consumed("team").await, 0);
}

/// A remembered request follows a changed parent, also if its bucket needs no lease for minutes.
#[tokio::test(start_paused = true)]
async fn leased_request_by_names_follows_a_changed_parent() {
    let held_long = LeaseSettings {
        min_requests: 100_000,
        max_requests: 100_000,
        max_age: 10 * MINUTE,
        ..LeaseSettings::default()
    };
    for settings in [LeaseSettings::default(), held_long] {
        let table = Configured::new();
        let clock = Simulated { start: table.start, off_ms: 0 };
        let limiter = leased(table.clone(), clock, settings);
        table.set_limits(&[("rps", per_minute(60_000))]);
        let request = || limiter.acquire("u0", "r").consume("rps", 1);
        let take = async || match request().try_acquire().unwrap() {
            Some(permit) => permit,
            None => request().await.unwrap(),
        };
        let ask = async || {
            take().await;
            true
        };
        for parent in ["team", "org"] {
            admitted(5 * SECOND, &ask).await;
            table.put_entity("u0", parent);
            admitted(MINUTE + SECOND, &ask).await;
            let buckets: Vec<_> =
                take().await.buckets().map(|bucket| bucket.entity.to_string()).collect();
            assert_eq!(buckets, ["u0", parent]);
            limiter.flush(SECOND).await;
            let before = [table.consumed("u0").await, table.consumed(parent).await];
            let admitted = admitted(5 * SECOND, &ask).await;
            limiter.flush(SECOND).await;
            let after = [table.consumed("u0").await, table.consumed(parent).await];
            assert!(admitted > 400, "{parent}: {admitted}");
            assert_eq!(after, before.map(|before| before + admitted), "{parent}");
        }
    }
}

/// Held tokens of another entity and of its own stored parent are taken without a call.
#[tokio::test(start_paused = true)]
async fn prepared_call_with_a_stored_parent_is_made_for_others_without_a_call() {
    let table = Configured::new();
    let limiter = table.limiter(LeaseMode::default());
    table.set_limits(&[("rps", per_minute(60_000))]);
    table.put_entity("u0", "team");
    table.put_entity("u1", "org");
    let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
    assert!(call.try_acquire_for("u1").is_none(), "this process has not seen u1");
    let ask = async || call.acquire_for("u1").await.is_ok();
    admitted(2 * SECOND, &ask).await;
    let taken: Vec<_> = (0..100).filter_map(|_| call.try_acquire_for("u1")).collect();
    assert!(taken.len() >= 20, "{}", taken.len());
    taken.into_iter().for_each(PreparedPermit::release);
    let taken: i64 = (0..20).map(|_| i64::from(call.try_acquire_for("u1").is_some())).sum();
    limiter.flush(SECOND).await;
    assert_eq!(taken, 20);
    assert_eq!(table.consumed("u1").await, table.consumed("org").await);
    assert_eq!(table.consumed("team").await, 0);
}

/// A call that has seen many changes still takes from the right buckets.
#[tokio::test(start_paused = true)]
async fn leased_prepared_follows_any_number_of_changes() {
    let table = Configured::new();
    let limiter = table.limiter(LeaseMode::default());
    table.set_limits(&[("rps", per_minute(60_000))]);
    let call = limiter.acquire("u0", "r").consume("rps", 1).prepare().await.unwrap();
    let ask = async || call.acquire().await.is_ok();
    for n in 0..80 {
        table.put_entity("u0", if n % 2 == 0 { "team" } else { "org" });
        sleep(MINUTE + SECOND).await;
        admitted(SECOND, &ask).await;
    }
    // The last one is the organisation.
    limiter.flush(SECOND).await;
    let before = [table.consumed("team").await, table.consumed("org").await];
    let tried = AtomicU64::new(0);
    let more = admitted(5 * SECOND, async || match call.try_acquire() {
        Some(_) => {
            tried.fetch_add(1, Ordering::Relaxed);
            true
        }
        None => ask().await,
    });
    let more = more.await;
    limiter.flush(SECOND).await;
    let after = [table.consumed("team").await, table.consumed("org").await];
    assert_eq!(after, [before[0], before[1] + more]);
    let tried = tried.into_inner();
    assert!(tried > 400, "{tried} of {more} were held");
}
