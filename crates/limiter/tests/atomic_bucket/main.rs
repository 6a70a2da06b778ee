//! Every interleaving of threads on an `AtomicBucket` that the memory model allows (loom).
#![allow(missing_docs, dead_code, clippy::unwrap_used, reason = "tests panic, and use a part")]

/// The atomics of the model in the place of the real ones.
mod sync {
    pub(super) use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering, fence,
    };
}

#[path = "../../src/leasing/atomic_bucket.rs"]
mod atomic_bucket;

use atomic_bucket::{AtomicBucket, Demand, POOL_MAX, PutResult, TakeResult};
use loom::sync::Arc;
use loom::thread;

fn cell(tokens: &[u64]) -> Arc<AtomicBucket> {
    let cell = AtomicBucket::new(tokens.len());
    cell.set_times(100, 100);
    for (slot, tokens) in tokens.iter().enumerate() {
        put(&cell, slot.try_into().unwrap(), *tokens);
    }
    Arc::new(cell)
}

fn put(cell: &AtomicBucket, slot: u16, tokens: u64) -> PutResult {
    let result = cell.put(slot, tokens);
    assert_ne!(result, PutResult::NoRoom);
    result
}

fn left(cell: &AtomicBucket) -> Vec<u64> {
    cell.slots.iter().map(|slot| slot.pool.tokens()).collect()
}

fn both(first: u64, second: u64) -> [Demand; 2] {
    [Demand { slot: 0, milli: first }, Demand { slot: 1, milli: second }]
}

fn took(cell: &AtomicBucket, asks: &[Demand]) -> bool {
    cell.take(asks, 50) != TakeResult::NotTaken
}

#[test]
fn the_last_token_is_taken_once() {
    loom::model(|| {
        let cell = cell(&[1]);
        let ask = [Demand { slot: 0, milli: 1 }];
        let other = {
            let cell = cell.clone();
            thread::spawn(move || took(&cell, &ask))
        };
        let mine = took(&cell, &ask);
        assert!(mine ^ other.join().unwrap());
        assert_eq!(left(&cell), [0]);
        assert_eq!(cell.slots[0].pool.takes(), 1);
    });
}

#[test]
fn several_limits_are_taken_together_or_not_at_all() {
    loom::model(|| {
        let cell = cell(&[3, 2]);
        let other = {
            let cell = cell.clone();
            thread::spawn(move || took(&cell, &both(1, 2)))
        };
        let mine = took(&cell, &both(2, 1));
        let other = other.join().unwrap();
        // The second limit is enough for one of them; a take that is undone may make both fail.
        assert!(!(mine && other));
        let taken =
            [2 * u64::from(mine) + u64::from(other), u64::from(mine) + 2 * u64::from(other)];
        assert_eq!(left(&cell), [3 - taken[0], 2 - taken[1]]);
        assert_eq!(cell.slots[0].pool.takes(), u32::from(mine) + u32::from(other));
    });
}

#[test]
fn an_undone_take_of_a_pool_that_was_filled_meanwhile_counts_no_takes() {
    loom::model(|| {
        let cell = cell(&[POOL_MAX, 0]);
        let filling = {
            let cell = cell.clone();
            // Fits while the other thread is taking.
            thread::spawn(move || cell.put(0, 3))
        };
        assert!(!took(&cell, &both(5, 1)));
        _ = filling.join().unwrap();
        assert_eq!((left(&cell), cell.slots[0].pool.takes()), (vec![POOL_MAX, 0], 0));
    });
}

#[test]
fn drained_tokens_were_handed_to_nobody() {
    loom::model(|| {
        let cell = cell(&[2, 1]);
        let taker = {
            let cell = cell.clone();
            thread::spawn(move || u64::from(took(&cell, &both(2, 1))))
        };
        let drained = [0, 1].map(|slot: usize| cell.slots[slot].pool.drain(9));
        let taken = taker.join().unwrap();
        let after = left(&cell);
        assert_eq!(drained[0] + after[0] + 2 * taken, 2);
        assert_eq!(drained[1] + after[1] + taken, 1);
    });
}

#[test]
fn returned_tokens_never_stay_unwatched() {
    loom::model(|| {
        let cell = cell(&[0]);
        cell.watch();
        let watcher = {
            let cell = cell.clone();
            thread::spawn(move || cell.unwatch())
        };
        let is_watched = put(&cell, 0, 5) == PutResult::Watched;
        let is_left = watcher.join().unwrap();
        assert!(!(is_watched && is_left), "each of them relies on the other");
    });
}

/// As in `LeasedBucket::conclude`: the deadline is set after the tokens were put.
#[test]
fn a_new_lease_is_not_handed_out_by_the_old_ones_deadline() {
    loom::model(|| {
        let cell = cell(&[0]);
        cell.set_times(10, 10);
        let renewal = {
            let cell = cell.clone();
            thread::spawn(move || {
                cell.end_by(60);
                put(&cell, 0, 1);
                cell.set_times(60, 60);
            })
        };
        let mine = took(&cell, &[Demand { slot: 0, milli: 1 }]);
        renewal.join().unwrap();
        assert_eq!(left(&cell), [1 - u64::from(mine)]);
    });
}

/// As in `LeasedBucket::undo`.
#[test]
fn tokens_that_came_back_are_not_handed_out_by_the_deadline_of_others() {
    loom::model(|| {
        let cell = cell(&[0]);
        let undoing = {
            let cell = cell.clone();
            thread::spawn(move || {
                cell.end_by(40);
                put(&cell, 0, 1);
                cell.set_times(40, 0);
            })
        };
        // At 50.
        assert!(!took(&cell, &[Demand { slot: 0, milli: 1 }]));
        undoing.join().unwrap();
        assert_eq!(left(&cell), [1]);
    });
}
