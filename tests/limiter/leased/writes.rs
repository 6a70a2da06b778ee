//! Writes counted at the table, for each acquire.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate::leasing::Prepared;
use sluicegate::{Limit, Limiter};
use tokio::time::Instant;

use super::{Counted, SECOND, consumed, strict};

/// A request for one token of a bucket of ample capacity.
pub(crate) async fn prepared(limiter: &Limiter) -> Arc<Prepared> {
    let ample = [Limit::per_second("rps", 200_000)];
    let call = limiter.acquire("u0", "r").consume("rps", 1).limits(ample).no_cascade();
    Arc::new(call.prepare().await.unwrap())
}

/// Keys by a zipf distribution with exponent 1.
pub(crate) fn zipf(keys: u32) -> impl Fn() -> usize {
    let sums: Vec<f64> = (1..=keys)
        .scan(0.0, |sum, n| {
            *sum += 1.0 / f64::from(n);
            Some(*sum)
        })
        .collect();
    let total = sums[sums.len() - 1];
    move || sums.partition_point(|sum| *sum < fastrand::f64() * total)
}

/// One request for one token, given back if so wanted.
async fn ask(call: Arc<Prepared>, entity: String, gives_back: bool, admitted: Arc<AtomicU64>) {
    let ticket = call.acquire_for(&entity).await.unwrap();
    if gives_back {
        ticket.release();
    }
    admitted.fetch_add(1, Ordering::Relaxed);
}

/// With more waiting requests than these, the load stops to wait: on a machine that is too slow for
/// the pace, requests would wait longer than their deadlines.
const WAITING_MAX: usize = 2_000;

/// 50,000 requests a second at an even pace, or as many as the machine can make, each for an entity
/// that `who` picks; returns the admissions.
pub(crate) async fn load(
    call: &Arc<Prepared>,
    time: Duration,
    who: impl Fn() -> usize,
    gives_back: bool,
) -> u64 {
    let admitted = Arc::new(AtomicU64::new(0));
    let mut waiting = tokio::task::JoinSet::new();
    let start = Instant::now();
    let mut next = start;
    while next < start + time {
        for n in 0..50 {
            let entity = format!("u{}", who());
            let gives_back = gives_back && n % 2 == 0;
            match call.try_acquire_for(&entity) {
                Some(ticket) => {
                    if gives_back {
                        ticket.release();
                    }
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
                None => _ = waiting.spawn(ask(call.clone(), entity, gives_back, admitted.clone())),
            }
        }
        next += Duration::from_millis(1);
        tokio::time::sleep_until(next).await;
        while waiting.try_join_next().is_some() {}
        while waiting.len() > WAITING_MAX {
            waiting.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(result) = waiting.join_next().await {
        result.unwrap();
    }
    admitted.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_busy_bucket_costs_a_handful_of_writes() {
    let table = Counted::new(4);
    let limiter = strict(&table);
    let call = prepared(&limiter).await;
    let admitted = load(&call, 10 * SECOND, || 0, false).await;
    let report = limiter.shutdown(SECOND).await;
    println!("{admitted} admitted, {} writes, {report:?}", table.writes());
    assert_eq!(admitted, 500_000);
    assert!(table.writes() * 1_000 <= admitted, "{} writes", table.writes());
    assert_eq!(consumed(&table, "u0").await, 500_000);
}

#[tokio::test(start_paused = true)]
async fn returned_tokens_cost_no_write() {
    let table = Counted::new(4);
    let limiter = strict(&table);
    let call = prepared(&limiter).await;
    let admitted = load(&call, 10 * SECOND, || 0, true).await;
    limiter.shutdown(SECOND).await;
    println!("{admitted} admitted, {} writes", table.writes());
    assert!(table.writes() * 10_000 <= admitted, "{} writes", table.writes());
    assert_eq!(consumed(&table, "u0").await, 250_000);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_keys_cost_a_write_a_second_each_at_most() {
    fastrand::seed(5);
    let table = Counted::new(4);
    let limiter = strict(&table);
    let call = prepared(&limiter).await;
    let admitted = load(&call, 10 * SECOND, zipf(1_000), false).await;
    limiter.shutdown(SECOND).await;
    println!("{admitted} admitted, {} writes", table.writes());
    assert_eq!(admitted, 500_000);
    assert!(table.writes() * 1_000 <= admitted * 25, "{} writes", table.writes());
}
