//! Callers that are dropped at any moment: their tokens come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sluicegate::{AcquireError, CompositeStore, Limit, Limiter, TestClock};

use crate::scripted::{Act, Scripted};
use crate::support::{Engine, T0, at, bucket, limiter, name, on_every_store};

const FULL: i64 = 1_000_000;
const ROUNDS: u64 = 60;
const TASKS: u64 = 8;
const PARENTS: [&str; 2] = ["team", "staff"];

fn limits() -> [Limit; 1] {
    [Limit::quota("tokens", FULL.unsigned_abs())]
}

/// Drops half of the callers a short time after they asked. The tokens of the others, and only
/// these, are gone in the end. The callers of one child name two parents.
async fn tokens_of_dropped_callers_come_back<E: Engine>(engine: E) {
    let limiter = limiter(engine.clone(), &TestClock::at(at(T0)));
    let taken: Arc<[AtomicI64; 2]> = Arc::default();
    for round in 0..ROUNDS {
        let callers: Vec<_> = (0..TASKS)
            .map(|_| {
                let (limiter, taken, amount) =
                    (limiter.clone(), Arc::clone(&taken), fastrand::i64(1..100));
                let parent = fastrand::usize(..PARENTS.len());
                tokio::spawn(async move {
                    let request = limiter.acquire("u", "r").consume("tokens", amount);
                    request.limits(limits()).cascade_to(PARENTS[parent]).await.unwrap();
                    taken[parent].fetch_add(amount, Ordering::Relaxed);
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..200 * (1 + round % 20)))).await;
        for (n, caller) in callers.into_iter().enumerate() {
            if n % 2 == 0 {
                caller.abort();
            }
            assert!(caller.await.map_or_else(|error| error.is_cancelled(), |()| true));
        }
    }
    // The next writes give them back.
    let (mut gone, mut expected) = ([0; 3], [0; 3]);
    for _ in 0..100 {
        for (parent, taken) in PARENTS.iter().zip(taken.iter()) {
            let request = limiter.acquire("u", "r").consume("tokens", 1).limits(limits());
            request.cascade_to(parent).await.unwrap();
            taken.fetch_add(1, Ordering::Relaxed);
        }
        for (gone, entity) in gone.iter_mut().zip([PARENTS[0], PARENTS[1], "u"]) {
            let image = engine.image(&bucket(entity, "r")).await.unwrap();
            *gone = FULL - image.limits[&name("tokens")].tokens.get() / 1_000;
        }
        let [first, second] = taken.each_ref().map(|taken| taken.load(Ordering::Relaxed));
        expected = [first, second, first + second];
        if gone == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("gone {gone:?}, expected {expected:?}");
}

/// A caller is alone in its process, and writers of other processes come between its write and the
/// next one: more than a bucket remembers requests of.
async fn tokens_of_a_lone_caller_come_back<E: Engine>(engine: E) {
    let clock = TestClock::at(at(T0));
    let (alone, others) = (limiter(engine.clone(), &clock), limiter(engine.clone(), &clock));
    let acquire = |limiter: &Limiter, amount| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            limiter.acquire("u", "r").consume("tokens", amount).limits(limits()).await.unwrap();
        })
    };
    let mut gone = 0;
    for round in 0..ROUNDS {
        let caller = acquire(&alone, 1_000);
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..100 * (1 + round % 20)))).await;
        caller.abort();
        gone += i64::from(caller.await.is_ok()) * 1_000;
        for _ in 0..6 {
            acquire(&others, 1).await.unwrap();
        }
        acquire(&alone, 1).await.unwrap();
        gone += 7;
    }
    let mut left = 0;
    for _ in 0..100 {
        acquire(&alone, 1).await.unwrap();
        gone += 1;
        let image = engine.image(&bucket("u", "r")).await.unwrap();
        left = image.limits[&name("tokens")].tokens.get() / 1_000;
        if left == FULL - gone {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("left {left}, expected {}", FULL - gone);
}

#[tokio::test]
async fn tokens_of_a_lone_caller_come_back_among_other_processes() {
    on_every_store!(tokens_of_a_lone_caller_come_back);
}

#[tokio::test]
async fn tokens_come_back_to_one_thread() {
    on_every_store!(tokens_of_dropped_callers_come_back);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_come_back_to_several_threads() {
    on_every_store!(tokens_of_dropped_callers_come_back);
}

/// A client asks again and again for a limit that is spent. It must not keep the tokens of another
/// limit that were taken for a caller that left.
#[tokio::test(start_paused = true)]
async fn tokens_of_a_dropped_caller_come_back_although_all_others_are_refused() {
    let table = Scripted::default();
    let clock = TestClock::at(at(T0));
    let limiter = Limiter::builder(CompositeStore::with_table(table.clone())).clock(clock).build();
    let ask = |limit, tokens| {
        let limits = ["spent", "other"].map(|limit| Limit::quota(limit, 1_000));
        limiter.acquire("u", "r").consume(limit, tokens).limits(limits).no_cascade()
    };
    ask("spent", 1_000).await.unwrap();
    table.on_writes([Act::Slow(Duration::from_millis(50))]);
    let left = tokio::time::timeout(Duration::from_millis(10), ask("other", 500)).await;
    assert!(left.is_err());
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The refusal waits for the write that gives the tokens back. If that hangs, it is said at the
    // caller's deadline, and no outage policy admits the request.
    table.on_writes([Act::Hang]);
    for _ in 0..3 {
        let refused = ask("spent", 1).await.unwrap_err();
        assert!(matches!(refused, AcquireError::LimitExceeded(_)), "{refused:?}");
    }
    let other = table.memory.stored_now(&bucket("u", "r")).unwrap().limits[&name("other")];
    assert_eq!((other.tokens.get(), other.consumed.get()), (1_000_000, 0));
}
