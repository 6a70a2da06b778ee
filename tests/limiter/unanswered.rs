//! Errors while the table is silent: they say that it does not answer, not that tokens are short or
//! that other writers interfere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate::settings::{Certainty, StoreSettings};
use sluicegate::types::Amounts;
use sluicegate::{AcquireError, AdjustError, Limit, Limiter, TestClock};
use sluicegate_core::fixtures::milli;
use tokio::sync::oneshot;

use crate::intercept::{Call, intercepting};
use crate::scripted::{Act, Scripted};
use crate::support::{Engine as _, Memory, T0, at, bucket, limiter_as, limiter_on, name};

macro_rules! ask {
    ($limiter:expr, $tokens:expr) => {
        $limiter
            .acquire("u", "r")
            .consume("rpm", $tokens)
            .limits([Limit::per_minute("rpm", 60)])
            .no_cascade()
    };
}

/// One token a second, 60 at once; one of them is taken.
async fn used() -> (Scripted, TestClock, Limiter) {
    let (table, clock) = (Scripted::default(), TestClock::at(at(T0)));
    let limiter = limiter_on(table.clone(), &clock);
    ask!(limiter, 1).await.unwrap();
    (table, clock, limiter)
}

#[track_caller]
fn unavailable<T: std::fmt::Debug>(result: Result<T, AcquireError>) {
    assert!(matches!(result, Err(AcquireError::Unavailable(_))), "{result:?}");
}

/// Long and short deadlines, before and behind the request whose claim is not answered.
#[tokio::test(start_paused = true)]
async fn waiter_behind_an_unanswered_claim_finds_the_table_silent() {
    let (table, clock, limiter) = used().await;
    clock.advance(Duration::from_secs(10));
    table.on_writes([Act::Hang; 3]);
    let ask = |millis| ask!(limiter, 1).deadline(Duration::from_millis(millis)).into_future();
    let (first, shorter, longer) = tokio::join!(ask(1_000), ask(500), ask(1_500));
    unavailable(first);
    unavailable(shorter);
    unavailable(longer);
}

/// The second gets its turn when there is no time left for it.
#[tokio::test(start_paused = true)]
async fn waiter_with_the_same_deadline_finds_the_table_silent() {
    let (table, clock, limiter) = used().await;
    clock.advance(Duration::from_secs(10));
    table.on_writes([Act::Hang; 4]);
    let ask = || ask!(limiter, 1).deadline(Duration::from_millis(500)).into_future();
    let asked = futures_util::future::join_all([ask(), ask(), ask(), ask()]).await;
    asked.into_iter().for_each(unavailable);
}

/// The one before is answered, if only by a throttled table, and more than once in that time: its
/// pauses are shorter.
#[tokio::test(start_paused = true)]
async fn waiter_behind_a_throttled_claim_is_contended() {
    let (table, clock, limiter) = used().await;
    clock.advance(Duration::from_secs(10));
    table.on_writes([Act::Throttle; 1_000]);
    let ask = |millis| ask!(limiter, 1).deadline(Duration::from_millis(millis)).into_future();
    let (first, second) = tokio::join!(ask(1_000), ask(500));
    for result in [first, second] {
        assert!(matches!(result, Err(AcquireError::Contended { .. })), "{result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_found_no_connection_is_no_attempt() {
    let (table, clock, limiter) = used().await;
    let refused = Act::Refuse(Duration::from_millis(1));
    let ask = || ask!(limiter, 1).deadline(Duration::from_secs(5)).into_future();
    table.on_writes([refused, refused]);
    assert_eq!(ask().await.unwrap().cost().attempts, 1);
    // Two writes count: the second, whose answer is lost, and the fourth, which repeats it.
    table.on_writes([refused, Act::LoseReply, refused]);
    assert_eq!(ask().await.unwrap().cost().attempts, 2);
    // A transaction that is sent again is one attempt, with a connection or without.
    let settings =
        StoreSettings { certainty: Certainty::Transactional, ..StoreSettings::default() };
    let limiter = limiter_as(table.clone(), &clock, settings);
    table.on_writes([Act::LoseReply, refused]);
    assert_eq!(ask!(limiter, 1).await.unwrap().cost().attempts, 1);
}

/// Nobody tries again just before the deadline: neither the one that leads, nor those that lead
/// when it has left.
#[tokio::test(start_paused = true)]
async fn corrections_without_a_connection_are_not_ambiguous() {
    // Each with a breaker of its own, which is closed.
    for _ in 0..20 {
        let (table, _, limiter) = used().await;
        let mut permits = Vec::new();
        for _ in 0..5 {
            // The deadline of its corrections, too.
            permits.push(ask!(limiter, 2).deadline(Duration::from_millis(500)).await.unwrap());
        }
        table.always(Act::Refuse(Duration::from_millis(20)));
        let corrections = permits.iter().map(|permit| permit.adjust("rpm", -1));
        for result in futures_util::future::join_all(corrections).await {
            let failed = result.unwrap_err();
            assert!(matches!(failed, AdjustError::Unavailable(_)), "{failed:?}");
            assert!(!failed.may_have_been_made(), "{failed:?}");
        }
        assert_eq!(limiter.counters().ambiguous.get(), 0);
    }
}

/// The tokens that the first would take are all that the second lacks, and the first one's result
/// is unknown.
#[tokio::test(start_paused = true)]
async fn nobody_is_refused_for_the_sake_of_a_write_that_is_not_answered() {
    let (table, clock, limiter) = used().await;
    clock.advance(Duration::from_millis(60));
    table.on_writes([Act::Hang; 2]);
    table.on_reads([Act::Hang]);
    let ask = |tokens| ask!(limiter, tokens).deadline(Duration::from_millis(600)).into_future();
    let (first, second) = tokio::join!(ask(55), ask(10));
    unavailable(first);
    unavailable(second);
}

/// The write that starts later is not the answer that the second waits for.
#[tokio::test(start_paused = true)]
async fn a_promise_that_is_not_kept_refuses_nobody() {
    let (table, clock, limiter) = used().await;
    clock.advance(Duration::from_millis(60));
    // Another process takes the tokens that the first needs; the rest is enough for the second.
    ask!(crate::support::limiter_on(table.clone(), &clock), 20).await.unwrap();
    table.on_writes([Act::Slow(Duration::from_millis(10)), Act::Answer]);
    let claim = ask!(limiter, 1).into_future();
    let large = ask!(limiter, 57).into_future();
    let small = ask!(limiter, 5).into_future();
    clock.advance(Duration::from_millis(200));
    let (claim, large, small) = tokio::join!(claim, large, small);
    claim.unwrap();
    assert!(matches!(large, Err(AcquireError::LimitExceeded(_))), "{large:?}");
    small.unwrap();
}

/// A caller whose future is held and not polled has the call that others wait for.
#[tokio::test(start_paused = true)]
async fn caller_that_is_not_polled_does_not_hold_up_others() {
    let (table, _, limiter) = used().await;
    table.on_writes([Act::Slow(Duration::from_millis(50))]);
    let ask = || ask!(limiter, 1).deadline(Duration::from_secs(10)).into_future();
    let mut held = Box::pin(ask());
    assert!((&mut held).now_or_never().is_none());
    let start = tokio::time::Instant::now();
    ask().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    held.await.unwrap();
    let stored = table.memory.stored_now(&bucket("u", "r")).unwrap();
    assert_eq!(stored.limits[&name("rpm")].tokens.get(), 57_000);
}

/// A table whose answers another task reads: 400 ms after the call, in several steps.
#[derive(Debug, Clone, Default)]
struct ReadElsewhere(Memory, Arc<AtomicU32>);

impl ReadElsewhere {
    async fn intercept<T>(&self, call: Call<'_>, done: impl Future<Output = T>) -> T {
        if matches!(call, Call::Write(..)) {
            self.1.fetch_add(1, Ordering::Relaxed);
            let (answer, answered) = oneshot::channel();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(400)).await;
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                answer.send(())
            });
            answered.await.unwrap();
        }
        done.await
    }
}

intercepting!(ReadElsewhere, 0);

/// The process gets no processor time for a second. The answer came meanwhile, so the write is not
/// sent again, whether the caller that leads or one that waits for it is the first to run.
#[tokio::test(start_paused = true)]
async fn an_answer_that_came_while_the_process_was_starved_is_read() {
    // The last deadline is over by then.
    for (has_follower, deadline_ms) in [(false, 10_000), (true, 10_000), (false, 250)] {
        let (table, clock) = (ReadElsewhere::default(), TestClock::at(at(T0)));
        let limiter = limiter_on(table.clone(), &clock);
        let deadline = Duration::from_millis(deadline_ms);
        let request = || ask!(limiter, 1).deadline(deadline).into_future();
        let follower = async {
            if has_follower {
                tokio::task::yield_now().await;
                request().await.unwrap();
            }
        };
        let starved = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            tokio::time::advance(Duration::from_secs(1)).await;
        };
        // They are polled in this order.
        let ((), granted, ()) = tokio::join!(biased; follower, request(), starved);
        granted.unwrap();
        let writes = if has_follower { 2 } else { 1 };
        assert_eq!(table.1.load(Ordering::Relaxed), writes);
    }
}

/// A correction leaves out a limit that the bucket lacks. If it was made and its caller did not
/// learn so, the repeated call says the same: the permit has taken nothing of that limit.
#[tokio::test(start_paused = true)]
async fn a_repeated_correction_names_the_limits_that_the_bucket_lacks() {
    let (table, _, limiter) = used().await;
    let permit = ask!(limiter, 10).deadline(Duration::from_millis(100)).await.unwrap();
    table.on_writes([Act::Slow(Duration::from_millis(200))]);
    let by: Amounts =
        [("rpm", 5), ("tpm", 7)].map(|(limit, by)| (name(limit), milli(by * 1_000))).into();
    let (made, after) = (permit.adjust_all(&by), Duration::from_millis(150));
    // The future is dropped while the answer is on its way.
    assert!(tokio::time::timeout(after / 2, made).await.is_err());
    tokio::time::sleep(after).await;
    assert_eq!(permit.adjust_all(&by).await.unwrap().dropped, [name("tpm")]);
}

/// A correction whose answer is lost does not happen, and another write fences it: its id is in the
/// item. However many writes are lost after that, the id does not stand for the correction.
#[tokio::test(start_paused = true)]
async fn a_fenced_correction_is_made_when_it_is_repeated() {
    let (table, _, limiter) = used().await;
    let permit = ask!(limiter, 10).deadline(Duration::from_millis(100)).await.unwrap();
    table.always(Act::Hang);
    let failed = permit.adjust("rpm", 5).await;
    assert!(matches!(failed, Err(AdjustError::Unavailable(_))), "{failed:?}");
    table.always(Act::Answer);
    ask!(limiter, 1).await.unwrap();
    table.always(Act::Hang);
    for _ in 0..8 {
        unavailable(ask!(limiter, 1).deadline(Duration::from_millis(100)).await);
    }
    table.always(Act::Answer);
    permit.adjust("rpm", 5).await.unwrap();
    let consumed =
        table.memory.image(&bucket("u", "r")).await.unwrap().limits[&name("rpm")].consumed;
    assert_eq!(consumed.get() / 1_000, 1 + 10 + 1 + 5);
}
