//! Corrections that are made once, in any process, however often they are asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluicegate::store::TableError;
use sluicegate::types::EpochMillis;
use sluicegate::{AdjustError, Limit, Limiter, TestClock};
use tokio::task::JoinSet;

use crate::intercept::{Call, intercepting};
use crate::scripted::{Act, Scripted};
use crate::support::{
    Engine, Memory, T0, at, bucket, builder, limiter, limiter_on, on_every_store,
};

fn limits() -> [Limit; 1] {
    [Limit::quota("tpm", 1_000)]
}

/// The store keeps the time of the machine, whatever the clock of the test.
fn until() -> EpochMillis {
    at(T0 + 3_600_000)
}

async fn left(engine: &impl Engine, entity: &str) -> i64 {
    let image = engine.image(&bucket(entity, "r")).await.unwrap();
    image.limits.values().next().unwrap().tokens.get()
}

async fn same_key_twice(engine: impl Engine) {
    let clock = TestClock::at(at(T0));
    let (first, second) = (limiter(engine.clone(), &clock), limiter(engine.clone(), &clock));
    first.acquire("u", "r").consume("tpm", 500).limits(limits()).await.unwrap();
    for (limiter, key, already_made, expected) in [
        (&first, "a", false, 600_000),
        (&second, "a", true, 600_000),
        (&first, "a", true, 600_000),
        (&second, "b", false, 700_000),
    ] {
        let adjusted = limiter.adjust("u", "r").by("tpm", -100).once(key, until()).await.unwrap();
        assert_eq!(adjusted.already_made, already_made, "{key}");
        assert_eq!(left(&engine, "u").await, expected, "{key}");
    }
    // A key that is used again for other amounts is noticed.
    for (by, key_was_reused) in [(-100, false), (-99, true), (100, true)] {
        let adjusted = second.adjust("u", "r").by("tpm", by).once("a", until()).await.unwrap();
        assert!(adjusted.already_made);
        assert_eq!(adjusted.key_was_reused, key_was_reused, "{by}");
    }
    assert_eq!(left(&engine, "u").await, 700_000);
    // A bucket that is gone is made anew, and marks stay.
    engine.forget(&bucket("u", "r")).await;
    let again = second.adjust("u", "r").by("tpm", -100).limits(limits()).once("a", until()).await;
    assert!(again.unwrap().already_made);
    let new = second.adjust("u", "r").by("tpm", 100).limits(limits()).once("c", until()).await;
    assert!(!new.unwrap().already_made);
    assert_eq!(left(&engine, "u").await, 900_000);
}

async fn many_at_once(engine: impl Engine) {
    const TASKS: usize = 16;
    let clock = TestClock::at(at(T0));
    let limiters: Vec<_> = (0..4).map(|_| limiter(engine.clone(), &clock)).collect();
    let fresh = Arc::new(AtomicU32::new(0));
    limiters[0].acquire("u", "r").consume("tpm", 500).limits(limits()).await.unwrap();
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let (limiter, fresh) = (limiters[n % 4].clone(), fresh.clone());
        tasks.spawn(async move {
            let request = limiter.adjust("u", "r").by("tpm", -100);
            let adjusted = request.once(format!("key-{}", n / 8), until()).await.unwrap();
            fresh.fetch_add(u32::from(!adjusted.already_made), Ordering::Relaxed);
            // Other requests go on meanwhile.
            limiter.acquire("u", "r").consume("tpm", 1).limits(limits()).await.unwrap();
        });
    }
    tasks.join_all().await;
    assert_eq!(fresh.load(Ordering::Relaxed), 2, "each of two keys made one correction");
    assert_eq!(left(&engine, "u").await, 500_000 + 200_000 - 16_000);
}

async fn child_and_parent(engine: impl Engine) {
    let clock = TestClock::at(at(T0));
    let limiter = limiter(engine.clone(), &clock);
    let request = limiter.acquire("u", "r").consume("tpm", 500).limits(limits());
    request.cascade_to("team").await.unwrap();
    // The child was corrected by an attempt that ended in between.
    let child = limiter.adjust("u", "r").by("tpm", -500).no_cascade();
    child.once("a", until()).await.unwrap();
    let both = || limiter.adjust("u", "r").by("tpm", -500).cascade_to("team").once("a", until());
    assert!(!both().await.unwrap().already_made, "the parent was not");
    assert!(both().await.unwrap().already_made);
    assert_eq!([left(&engine, "u").await, left(&engine, "team").await], [1_000_000; 2]);
}

/// A repetition writes nothing, so it may not tell what is left.
async fn repetition_after_expiry(engine: impl Engine) {
    let clock = TestClock::at(at(T0));
    let limiter = limiter(engine.clone(), &clock);
    let charge = || limiter.adjust("u", "r").by("tpm", 900).limits(limits()).once("a", until());
    charge().await.unwrap();
    engine.forget(&bucket("u", "r")).await;
    assert!(charge().await.unwrap().already_made);
    // A bucket that is gone is full.
    limiter.acquire("u", "r").consume("tpm", 500).limits(limits()).await.unwrap();
}

/// As without a key.
#[tokio::test]
async fn a_debt_that_is_made_once_moves_the_expiry() {
    let (engine, clock) = (Memory::default(), TestClock::at(at(T0)));
    let limiter = limiter(engine.clone(), &clock);
    let limits = || [Limit::per_minute("tpm", 60)];
    limiter.acquire("u", "r").consume("tpm", 60).limits(limits()).await.unwrap();
    let charge = limiter.adjust("u", "r").by("tpm", 1_000).limits(limits()).once("a", until());
    assert!(!charge.await.unwrap().already_made);
    let image = engine.image(&bucket("u", "r")).await.unwrap();
    // 1,060 seconds until it is full, twice as long until it may go.
    assert!(image.expires_at_s.unwrap() > T0 / 1_000 + 1_060);
}

async fn leased(engine: impl Engine) {
    let clock = TestClock::at(at(T0));
    let leasing = builder(engine.clone(), &clock).leasing(Default::default()).build();
    for _ in 0..20 {
        leasing.acquire("u", "r").consume("tpm", 10).limits(limits()).await.unwrap();
    }
    for already_made in [false, true] {
        let request = leasing.adjust("u", "r").by("tpm", -50).once("a", until());
        assert_eq!(request.await.unwrap().already_made, already_made);
    }
    leasing.shutdown(std::time::Duration::from_secs(10)).await;
    assert_eq!(left(&engine, "u").await, 850_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_in_any_process_changes_nothing() {
    on_every_store!(same_key_twice);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_on_an_expired_bucket_refuses_nobody() {
    on_every_store!(repetition_after_expiry);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_at_once_one_is_made() {
    on_every_store!(many_at_once);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_and_its_parent_are_each_corrected_once() {
    on_every_store!(child_and_parent);
}

#[tokio::test(flavor = "multi_thread")]
async fn leased_tokens_do_not_hide_a_repetition() {
    on_every_store!(leased);
}

/// A table that does the next transaction and loses the answer.
#[derive(Debug, Clone, Default)]
struct Losing {
    memory: Memory,
    answers_to_lose: Arc<AtomicU32>,
}

impl Losing {
    async fn intercept<T, E: From<TableError>>(
        &self,
        call: Call<'_>,
        done: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let result = done.await;
        let lose = |left: u32| left.checked_sub(1);
        if matches!(call, Call::WriteTogether)
            && self.answers_to_lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lose).is_ok()
        {
            return Err(TableError::Unconfirmed("the connection was closed".into()).into());
        }
        result
    }
}

intercepting!(Losing, memory);

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_no_second_correction() {
    let (table, clock) = (Losing::default(), TestClock::at(at(T0)));
    let limiter = limiter_on(table.clone(), &clock);
    limiter.acquire("u", "r").consume("tpm", 500).limits(limits()).await.unwrap();
    table.answers_to_lose.store(1, Ordering::Relaxed);
    limiter.adjust("u", "r").by("tpm", -100).once("a", until()).await.unwrap();
    assert_eq!(left(&table.memory, "u").await, 600_000);

    // The answers to all writes are lost: the item tells that the first one took effect.
    table.answers_to_lose.store(u32::MAX, Ordering::Relaxed);
    limiter.adjust("u", "r").by("tpm", -100).once("b", until()).await.unwrap();
    assert_eq!(limiter.counters().ambiguous.get(), 0);
    table.answers_to_lose.store(0, Ordering::Relaxed);
    let other: Limiter = limiter_on(table.clone(), &clock);
    let again = other.adjust("u", "r").by("tpm", -100).once("b", until()).await.unwrap();
    assert!(again.already_made);
    assert_eq!(left(&table.memory, "u").await, 700_000);
}

/// The answer is lost, and four other writes follow before the item is read: it no longer shows if
/// the correction was made. The mark does, so the same correction may be sent again.
#[tokio::test(start_paused = true)]
async fn a_correction_that_the_item_no_longer_shows_may_be_sent_again() {
    let (table, clock) = (Scripted::default(), TestClock::at(at(T0)));
    let limiter = limiter_on(table.clone(), &clock);
    limiter.acquire("u", "r").consume("tpm", 500).limits(limits()).await.unwrap();
    let other: Limiter = limiter_on(table.clone(), &clock);
    let correct = || limiter.adjust("u", "r").by("tpm", -100).once("a", until()).into_future();
    table.on_writes([Act::LoseReply]);
    let others = async {
        for _ in 0..4 {
            other.acquire("u", "r").consume("tpm", 1).limits(limits()).await.unwrap();
        }
    };
    let (lost, ()) = tokio::join!(correct(), others);
    let error = lost.unwrap_err();
    assert!(matches!(error, AdjustError::Unavailable(_)) && error.may_be_repeated(), "{error:?}");
    assert!(error.to_string().starts_with("an answer of the store was lost"), "{error}");
    assert!(correct().await.unwrap().already_made);
    assert_eq!(left(&table.memory, "u").await, 596_000);
}

#[tokio::test]
async fn a_key_that_no_item_can_have_is_refused() {
    let limiter = limiter_on(Memory::default(), &TestClock::at(at(T0)));
    for key in ["", "a#b", "a\n", &"x".repeat(129)] {
        let request = limiter.adjust("u", "r").by("tpm", 1).limits(limits()).once(key, until());
        assert!(matches!(request.await, Err(AdjustError::InvalidRequest(_))), "{key:?}");
    }
}
