//! Budgets in money: calls whose cost is known only afterwards reserve an estimate and correct it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate::dynamo::DynamoTable;
use sluicegate::types::EpochMillis;
use sluicegate::{AcquireError, CompositeStore, Limit, Limiter, TestClock};
use sluicegate_testkit::{EngineKind, RunningEngine, engines_under_test};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::metering::check_windows;
use crate::simulated::{Far, Simulated};
use crate::support::limiter as make;
use crate::support::{Engine, Memory, Shared, T0, at, bucket, name, on_every_store, patient};

const CENT: i64 = 10_000_000;
const BUDGET: i64 = 1_000 * CENT;
const DAY: Duration = Duration::from_secs(86_400);
/// From [`T0`] to February, UTC.
const UNTIL_FEBRUARY: Duration = Duration::from_secs(3 * 86_400 + 10 * 3_600);

fn budget() -> Limit {
    "usd=10/month".parse().unwrap()
}

/// A call, amounts in billionths of a dollar.
#[derive(Debug, Clone, Copy)]
struct ModelCall {
    starts: Duration,
    lasts: Duration,
    estimate: i64,
    cost: i64,
}

/// 2,000 calls that begin within twenty days of February; most overlap with about thirty others.
fn calls(estimates: std::ops::Range<f64>) -> Vec<ModelCall> {
    let call = |_| {
        let cost = fastrand::i64(1..2 * CENT);
        let share = estimates.start + fastrand::f64() * (estimates.end - estimates.start);
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a guess")]
        let estimate = (cost as f64 * share) as i64 + 1;
        ModelCall {
            starts: UNTIL_FEBRUARY + (20 * DAY).mul_f64(fastrand::f64()),
            lasts: (DAY / 2).mul_f64(fastrand::f64()),
            estimate,
            cost,
        }
    };
    (0..2_000).map(call).collect()
}

/// The reserved and spent amounts, after each change.
#[derive(Debug, Default)]
struct Book {
    reserved: i128,
    history: Vec<(Instant, i128)>,
    spent: i128,
    /// The cost of the calls in flight beyond their estimates.
    short: i128,
    /// The same at the last grant.
    short_at_last_grant: i128,
    granted: u32,
    refused: u32,
}

impl Book {
    fn reserve(&mut self, amount: i64) {
        self.reserved += i128::from(amount);
        self.history.push((Instant::now(), self.reserved));
    }

    /// The most that was reserved at any instant since.
    fn most_since(&self, start: Instant) -> i128 {
        let before = self.history.iter().rev().skip_while(|(at, _)| *at >= start).take(1);
        let since = self.history.iter().rev().take_while(|(at, _)| *at >= start);
        before.chain(since).map(|(_, reserved)| *reserved).max().unwrap_or(0)
    }
}

/// One call by the rules: an estimate is reserved, and corrected when the cost is known.
async fn run(limiter: Limiter, book: Arc<Mutex<Book>>, start: Instant, call: ModelCall) {
    tokio::time::sleep_until(start + call.starts).await;
    let (asked_at, short) = (Instant::now(), i128::from((call.cost - call.estimate).max(0)));
    book.lock().unwrap().reserve(call.estimate);
    let request = limiter.acquire("u", "r").consume_milli("usd", call.estimate);
    let permit = match request.limits([budget()]).await {
        Ok(permit) => permit,
        Err(AcquireError::LimitExceeded(_)) => {
            let book = &mut *book.lock().unwrap();
            let most = book.most_since(asked_at);
            assert!(most > i128::from(BUDGET), "refused although {most} of {BUDGET} was reserved");
            book.reserve(-call.estimate);
            book.refused += 1;
            return;
        }
        Err(error) => panic!("{error:?}"),
    };
    {
        let book = &mut *book.lock().unwrap();
        book.granted += 1;
        book.short += short;
        book.short_at_last_grant = book.short;
    }
    tokio::time::sleep(call.lasts).await;
    let more = call.cost - call.estimate;
    if more != 0 {
        permit.adjust_milli("usd", more).await.unwrap();
    }
    let book = &mut *book.lock().unwrap();
    book.reserve(more);
    book.spent += i128::from(call.cost);
    book.short -= short;
}

/// A month of calls of four processes, on a table that is some milliseconds away.
async fn month(estimates: std::ops::Range<f64>) -> Book {
    fastrand::seed(7);
    let (table, start) = (Memory::default(), Instant::now());
    let limiters = [-2_000, -1, 0, 1_500].map(|off_ms| {
        let store = CompositeStore::with_table(Far(table.clone(), 8));
        patient(Limiter::builder(store).clock(Simulated { start, off_ms }))
    });
    let book = Arc::new(Mutex::new(Book::default()));
    let mut running = JoinSet::new();
    for (n, call) in calls(estimates).into_iter().enumerate() {
        running.spawn(run(limiters[n % limiters.len()].clone(), book.clone(), start, call));
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    let stored = table.stored(&bucket("u", "r")).await.unwrap();
    let book = Arc::into_inner(book).unwrap().into_inner().unwrap();
    let consumed = stored.limits[&name("usd")].consumed.get();
    assert_eq!(consumed, book.spent, "counted to the billionth");
    println!("{} granted, {} refused, {} spent", book.granted, book.refused, book.spent);
    assert!(book.granted > 500 && book.refused > 100);
    book
}

#[tokio::test(start_paused = true)]
async fn budget_is_not_exceeded_where_estimates_suffice() {
    let book = month(1.0..3.0).await;
    assert!(book.spent <= BUDGET.into());
    // The last reservations were too high; nothing else is left over.
    assert!(book.spent > i128::from(BUDGET) * 98 / 100, "{}", book.spent);
}

#[tokio::test(start_paused = true)]
async fn budget_is_exceeded_by_what_calls_in_flight_were_short_of() {
    let book = month(0.3..1.0).await;
    let most = i128::from(BUDGET) + book.short_at_last_grant;
    assert!(book.spent > BUDGET.into() && book.spent <= most, "{} of {most}", book.spent);
}

/// Groups of calls that reserve and correct at the same time; returns their cost.
async fn groups(limiter: &Limiter, clock: &TestClock) -> i128 {
    let mut spent = 0;
    let limit: Limit = "usd=0.25/month".parse().unwrap();
    for group in 0..8_i64 {
        clock.advance(Duration::from_secs(3_600));
        let calls = (0..8).map(|n| (1 + group * 1_000 + n, n % 3 * CENT / 10));
        let granted = join_all(calls.map(async |(cents_and_some, more)| {
            let estimate = CENT + cents_and_some;
            let request = limiter.acquire("u", "r").consume_milli("usd", estimate);
            match request.limits([limit.clone()]).await {
                Ok(permit) => {
                    permit.adjust_milli("usd", 1 - more).await.unwrap();
                    Some(estimate + 1 - more)
                }
                Err(AcquireError::LimitExceeded(_)) => None,
                Err(error) => panic!("{error:?}"),
            }
        }));
        spent += granted.await.into_iter().flatten().map(i128::from).sum::<i128>();
    }
    spent
}

async fn in_groups<E: Engine>(engine: E) {
    let clock = TestClock::at(at(T0));
    let spent = groups(&make(engine.clone(), &clock), &clock).await;
    assert!((i128::from(24 * CENT)..=i128::from(25 * CENT) + 64).contains(&spent), "{spent}");
    let stored = engine.image(&bucket("u", "r")).await.unwrap();
    assert_eq!(stored.limits[&name("usd")].consumed.get(), spent);
}

#[tokio::test(flavor = "multi_thread")]
async fn budget_holds_on_every_store() {
    on_every_store!(in_groups);
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_show_what_the_calls_cost() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = engine.create_table().await;
        let clock = TestClock::at(at(T0));
        let limiter = make(DynamoTable::new(engine.client(), &table), &clock);
        let spent = groups(&limiter, &clock).await;
        let sums = BTreeMap::from([(("u".to_owned(), "usd".to_owned()), spent)]);
        check_windows(&engine, &table, sums, 1).await;
        engine.stop().await;
    }
}

/// Buckets that were used up on each of the last 75 days, and idle since: DynamoDB's sweeper, whose
/// clock is the machine's, deletes what has expired.
#[tokio::test(flavor = "multi_thread")]
async fn used_up_bucket_does_not_come_back_full() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let table = DynamoTable::new(engine.client(), engine.create_table().await);
    let now = sluicegate::Clock::now(&sluicegate::SystemClock);
    let ago = |days: i64| EpochMillis::new(now.get() - days * 86_400_000).unwrap();
    let ask = async |limiter: &Limiter, days: i64| {
        let request = limiter.acquire(format!("idle-{days}"), "r").consume_milli("usd", BUDGET);
        request.limits([budget()]).await.map(drop)
    };
    for days in 0..75 {
        ask(&make(table.clone(), &TestClock::at(ago(days))), days).await.unwrap();
    }
    engine.embedded().unwrap().sweep_ttl().await.unwrap();
    let (limiter, mut gone) = (make(table.clone(), &TestClock::at(now)), 0);
    for days in 0..75 {
        let is_there = table.stored(&bucket(&format!("idle-{days}"), "r")).await.is_some();
        let refill = budget().check().unwrap().1.refill();
        let is_full = refill.accrued_between(ago(days), now) > 0;
        assert!(is_there || is_full, "the bucket of {days} days ago was deleted before it is full");
        gone += u32::from(!is_there);
        let asked = ask(&limiter, days).await;
        assert_eq!(asked.is_ok(), is_full, "{days} days ago: {asked:?}");
    }
    assert!(gone > 0, "the sweeper deleted nothing");
    engine.stop().await;
}
