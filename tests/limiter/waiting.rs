//! Waiting for tokens in order, shadow mode, and the balances of a permit.

use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluicegate::{AcquireError, Clock, Limit, TestClock};

use crate::support::{Engine, Memory, T0, at, bucket, builder, limiter, name, on_every_store};

/// The quota is for stores that expire buckets by a clock of their own: one that has it stays.
fn per_second() -> [Limit; 2] {
    [Limit::per_second("rps", 2), Limit::quota("keeps", 1)]
}

/// Moves the clock a millisecond whenever all running tasks are asleep.
async fn tick_until_done(clock: &TestClock, tasks: &[tokio::task::JoinHandle<()>]) {
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        // The others sleep until the end of their time; the head of the queue until its tokens
        // come.
        tokio::time::sleep(Duration::from_millis(1)).await;
        clock.advance(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn waiters_are_served_in_the_order_in_which_they_came() {
    let clock = TestClock::at(at(T0));
    let limiter = limiter(Memory::default(), &clock);
    limiter.acquire("u", "r").consume("rps", 2).limits(per_second()).await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..6 {
        let waiter = limiter.clone();
        let (served, clock) = (served.clone(), clock.clone());
        tasks.push(tokio::spawn(async move {
            // The later ones ask for less and could overtake.
            let tokens = if n == 0 { 2 } else { 1 };
            let request = waiter.acquire("u", "r").consume("rps", tokens).limits(per_second());
            request.wait_up_to(Duration::from_secs(60)).await.unwrap();
            served.lock().unwrap().push((n, clock.now().get() - T0));
        }));
        // Until it stands in the queue.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    tick_until_done(&clock, &tasks).await;
    let served = served.lock().unwrap().clone();
    assert_eq!(served.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    // Two tokens take a second and each further one half: seven tokens, three and a half seconds.
    let last = served[5].1;
    assert!((3_500..=3_700).contains(&last), "{served:?}");
}

/// By the wait in its refusal it would wait an hour.
#[tokio::test]
async fn waiter_gets_what_is_there_earlier_within_a_minute() {
    let clock = TestClock::at(at(T0));
    let limiter = limiter(Memory::default(), &clock);
    let limits = || [Limit::per_hour("rph", 10), Limit::quota("keeps", 1)];
    let permit = limiter.acquire("u", "r").consume("rph", 10).limits(limits()).await.unwrap();
    let (waiter, woken) = (limiter.clone(), clock.clone());
    let waiting = tokio::spawn(async move {
        let request = waiter.acquire("u", "r").consume("rph", 10).limits(limits());
        request.wait_up_to(Duration::from_secs(7_200)).await.unwrap();
        woken.now().get() - T0
    });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    permit.release().await.unwrap();
    for _ in 0..70 {
        clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(waiting.is_finished(), "it waits on");
    assert!(waiting.await.unwrap() <= 61_000);
}

async fn too_long<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let limiter = limiter(table, &clock);
    let ask = || limiter.acquire("u", "r").consume("rps", 2).limits(per_second());
    ask().await.unwrap();
    // A second would be enough; no request sleeps for tokens that do not come in time.
    let refused = ask().wait_up_to(Duration::from_millis(999)).await.unwrap_err();
    assert!(matches!(refused, AcquireError::LimitExceeded(_)), "{refused}");
    assert_eq!(clock.now(), at(T0));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_come_too_late_are_refused_at_once() {
    on_every_store!(too_long);
}

async fn for_ever<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let limiter = builder(table, &clock).deadline(Duration::MAX).build();
    let ask = || limiter.acquire("u", "r").consume("rps", 1).limits(per_second());
    let permit = ask().wait_up_to(Duration::MAX).await.unwrap();
    permit.adjust("rps", 1).await.unwrap();
    permit.release().await.unwrap();
    ask().deadline(Duration::MAX).await.unwrap();
    limiter.adjust("u", "r").by("rps", 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn time_without_end_is_a_deadline_too() {
    on_every_store!(for_ever);
}

async fn only_counting<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let limiter = builder(table.clone(), &clock).shadow().build();
    let ask = || limiter.acquire("u", "r").consume("rps", 2).limits(per_second());
    assert!(ask().await.unwrap().shadowed().is_none());
    let permit = ask().await.unwrap();
    assert_eq!(permit.shadowed().unwrap().retry_after, Some(Duration::from_secs(1)));
    permit.adjust("rps", 5).await.unwrap();
    permit.release().await.unwrap();
    let stored = table.image(&bucket("u", "r")).await.unwrap();
    assert_eq!(stored.limits[&name("rps")].consumed.get(), 2_000);
    assert_eq!(limiter.counters().shadowed.get(), 1);
    // More than the burst would be refused for good.
    let permit = limiter.acquire("u", "r").consume("rps", 3).limits(per_second()).await.unwrap();
    let exceeded = permit.shadowed().unwrap();
    assert_eq!(exceeded.retry_after, None);
    assert_eq!(
        exceeded.to_string(),
        "limit exceeded: rps of u has 0 of the 3 asked for; a full bucket holds less"
    );
    assert_eq!(limiter.counters().shadowed.get(), 2);
    // An invalid request is still an error.
    assert!(limiter.acquire("u", "r").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn shadow_mode_refuses_nobody_and_takes_what_would_have_been_granted() {
    on_every_store!(only_counting);
}

async fn left_in_bucket<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let limiter = builder(table, &clock).near_share(0.25).build();
    let limits = [Limit::per_minute("rpm", 10), Limit::per_minute("tpm", 1_000)];
    let ask = |tpm| {
        limiter.acquire("u", "r").consume("rpm", 1).consume("tpm", tpm).limits(limits.clone())
    };
    let permit = ask(700).await.unwrap();
    let remaining = permit.remaining();
    let available: Vec<_> = remaining.iter().map(|left| left.available.get()).collect();
    assert_eq!(available, [9_000, 300_000]);
    let asked: Vec<_> = remaining.iter().map(|left| left.asked.get()).collect();
    assert_eq!(asked, [1_000, 700_000]);
    assert!(!permit.is_near_limit());
    assert!(ask(50).await.unwrap().is_near_limit());

    // It fills up while the work goes on; an adjustment is then missing from a full bucket.
    clock.advance(Duration::from_secs(600));
    permit.adjust("tpm", 400).await.unwrap();
    let left = &permit.remaining()[1];
    assert_eq!((left.available.get(), left.consumed.get()), (600_000, 1_100_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_says_what_is_left() {
    on_every_store!(left_in_bucket);
}

/// A trial slows no client down. The clock of this test stands still: a wait would never end.
#[tokio::test(start_paused = true)]
async fn nobody_waits_in_shadow_mode() {
    let clock = TestClock::at(at(T0));
    let limiter = builder(Memory::default(), &clock).shadow().build();
    let ask = || limiter.acquire("u", "r").consume("rps", 2).limits(per_second());
    for n in 0..3 {
        let asked = ask().wait_up_to(Duration::from_secs(10)).into_future();
        let permit = tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap().unwrap();
        assert_eq!(permit.shadowed().is_some(), n > 0);
    }
}
