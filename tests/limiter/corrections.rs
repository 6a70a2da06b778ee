//! Concurrent corrections: their cost, and the uncertainty that they may leave.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluicegate::settings::{Certainty, StoreSettings};
use sluicegate::store::{Table as _, TableError};
use sluicegate::types::BucketId;
use sluicegate::{CompositeStore, Limit, Limiter, TestClock};
use sluicegate_core::{WritePlan, extend};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::intercept::{Call, intercepting};
use crate::simulated::{Far, Simulated};
use crate::support::{Memory, T0, at, bucket, limiter_as, limiter_on, name};

/// Every debit claims if the burst is less than the refill during its transit, so each write that
/// succeeds refuses all others.
#[tokio::test(start_paused = true)]
async fn corrections_that_lose_to_one_another_pause() {
    const PROCESSES: u32 = 64;
    fastrand::seed(11);
    let (table, start) = (Far(Memory::default(), 4), Instant::now());
    let limits = || [Limit::per_second("rps", 10_000).burst(10)];
    let mut permits = Vec::new();
    for _ in 0..PROCESSES {
        let clock = Simulated { start, off_ms: 0 };
        let limiter =
            Limiter::builder(CompositeStore::with_table(table.clone())).clock(clock).build();
        permits.push(limiter.acquire("u", "r").consume("rps", 1).limits(limits()).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut tasks = JoinSet::new();
    for permit in permits {
        tasks.spawn(async move { permit.adjust("rps", 1).await.unwrap() });
    }
    let adjusted = tasks.join_all().await;
    let writes: f64 = adjusted.iter().map(|adjusted| adjusted.write_units).sum();
    let forced = adjusted.iter().filter(|adjusted| adjusted.is_forced).count();
    println!("{PROCESSES} corrections: {writes} writes, {forced} forced, {:?}", start.elapsed());
    assert!(writes <= 8.0 * f64::from(PROCESSES), "{writes} writes");
}

/// The treatment of the next write.
#[derive(Debug, Default)]
enum Keep {
    #[default]
    No,
    Next,
    Kept(BucketId, WritePlan),
}

/// A table in memory that keeps the next write instead of doing it, and does not answer.
#[derive(Debug, Clone, Default)]
struct Keeping {
    memory: Memory,
    kept: Arc<Mutex<Keep>>,
}

impl Keeping {
    fn keep_the_next(&self) {
        *self.kept.lock().unwrap() = Keep::Next;
    }

    fn kept(&self) -> (BucketId, WritePlan) {
        match std::mem::take(&mut *self.kept.lock().unwrap()) {
            Keep::Kept(bucket, plan) => (bucket, plan),
            other => panic!("{other:?}"),
        }
    }

    async fn intercept<T, E: From<TableError>>(
        &self,
        call: Call<'_>,
        done: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if let Call::Write(bucket, plan) = call
            && let kept @ Keep::Next = &mut *self.kept.lock().unwrap()
        {
            *kept = Keep::Kept(bucket.clone(), plan.clone());
            return Err(TableError::Unconfirmed("the connection was closed".into()).into());
        }
        done.await
    }
}

intercepting!(Keeping, memory);

#[tokio::test(start_paused = true)]
async fn a_refund_that_may_still_come_twice_is_counted() {
    let (table, clock) = (Keeping::default(), TestClock::at(at(T0)));
    let limiter = limiter_on(table.clone(), &clock);
    let take = async |tokens| {
        let request = limiter.acquire("u", "r").consume("usd", tokens);
        request.limits([Limit::quota("usd", 100)]).no_cascade().await.unwrap()
    };
    let balance = async || {
        let stored = table.memory.stored_now(&bucket("u", "r")).unwrap();
        stored.limits[&name("usd")].tokens.get() / 1_000
    };
    let permit = take(50).await;
    table.keep_the_next();
    permit.release().await.unwrap();
    assert_eq!((balance().await, limiter.counters().ambiguous.get()), (100, 1));
    let (refunded, late) = table.kept();
    assert!(table.memory.write(&refunded, &late).await.is_err(), "the bucket remembers it");
    for _ in 0..4 {
        drop(take(10).await);
    }
    // The case behind the count: four others wrote in between, and the bucket has forgotten it.
    table.memory.write(&refunded, &late).await.unwrap();
    assert_eq!(balance().await, 110);
    // Debits may be repeated without a count: one that comes twice is the restrictive side.
    let permit = take(1).await;
    table.keep_the_next();
    permit.adjust("usd", 1).await.unwrap();
    assert_eq!(limiter.counters().ambiguous.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_debt_in_a_transaction_is_covered_whatever_others_took() {
    let (table, clock) = (Memory::default(), TestClock::at(at(T0)));
    let settings =
        StoreSettings { certainty: Certainty::Transactional, ..StoreSettings::default() };
    let process = || limiter_as(table.clone(), &clock, settings.clone());
    let (one, other) = (process(), process());
    let take = async |limiter: &Limiter| {
        let request = limiter.acquire("u", "r").consume("rpm", 1);
        request.limits([Limit::per_minute("rpm", 60)]).no_cascade().await.unwrap()
    };
    let (first, second) = (take(&one).await, take(&other).await);
    clock.advance(Duration::from_millis(20));
    // Each alone is paid within the three minutes until the bucket may be deleted.
    first.adjust("rpm", 100).await.unwrap();
    second.adjust("rpm", 100).await.unwrap();
    let stored = table.stored_now(&bucket("u", "r")).unwrap();
    assert_eq!(stored.limits[&name("rpm")].tokens.get(), -142_000);
    assert_eq!(extend(&stored, at(T0 + 20)), None, "{stored:?}");
}
