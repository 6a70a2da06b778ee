//! The ledger of one limit. A pool is one number; the ledger adds the age of its tokens, the tokens
//! that were handed out, and those that go back to the store.
//!
//! Tokens are handed out in the order in which they were leased, so those missing from a pool
//! belong to its oldest leases. The ledger catches up when a task reads the pool; takes do not wait
//! for it.

use smallvec::SmallVec;

use super::atomic_bucket::{TAKES, TokenPool};
use super::moment::Moment;

/// The rate is observed for at least a twentieth of the time for which it is to hold.
const SHORTEST: i64 = 20;

/// An end that has passed: tokens with it are never handed out.
pub(super) const ENDED_MS: i64 = i64::MIN / 4;

/// Tokens of one lease that are still in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeldTokens {
    milli: u64,
    until_ms: i64,
}

/// The ledger of one limit of one bucket, amounts in millitokens. There may be one for every user,
/// so the fields that only size a lease are of low precision.
#[derive(Debug, Default)]
pub(super) struct LimitLedger {
    /// The oldest lease first; most of the time there is one. The newest lease stays in the list
    /// after it has ended, because `ends_ms` needs its end.
    held: SmallVec<[HeldTokens; 1]>,
    /// Taken out of the pool, to be given back to the store.
    pub(super) retired: u64,
    /// Handed out less given back, and not yet counted at the store.
    pub(super) used: i64,
    /// Handed out since the rate was last observed.
    handed_out_since: f32,
    observed_at: Moment,
    /// Handed out per millisecond.
    rate: f32,
    /// The size of the last lease.
    last_lease: f32,
    largest_request: f32,
    /// The pool's number of takes when it was last counted.
    takes_seen: u32,
}

impl LimitLedger {
    pub(super) fn new(now_ms: i64) -> Self {
        Self { observed_at: Moment::of(now_ms), ..Self::default() }
    }

    fn total(&self) -> u64 {
        self.held.iter().map(|held| held.milli).sum()
    }

    /// Ends every lease.
    pub(super) fn expire_all(&mut self) {
        self.held.iter_mut().for_each(|held| held.until_ms = ENDED_MS);
    }

    /// Notes the tokens that were taken from a pool, and takes out those that are too old.
    pub(super) fn catch_up(&mut self, pool: &TokenPool, now_ms: i64) {
        let (before, after) = (signed(self.total()), signed(pool.tokens()));
        self.note(before - after);
        _ = self.take_off(unsigned(before - after));
        if after > before {
            // Tokens that were given back end with the newest lease; without a lease they go back
            // to the store.
            let milli = unsigned(after - before);
            match self.held.last_mut() {
                Some(newest) => newest.milli += milli,
                None => self.held.push(HeldTokens { milli, until_ms: now_ms - 1 }),
            }
        }
        while let Some(oldest) = self.held.first().copied() {
            let is_newest = self.held.len() == 1;
            if oldest.until_ms >= now_ms && (oldest.milli > 0 || is_newest) {
                break;
            }
            let got = pool.drain(oldest.milli);
            self.note(signed(oldest.milli - got));
            self.retired += got;
            if is_newest {
                self.held[0].milli = 0;
                break;
            }
            self.held.remove(0);
        }
    }

    /// Write-behind only: sets the pool to `target` tokens that end at `until_ms`. Removed tokens
    /// are forgotten, not returned, because they were never debited.
    pub(super) fn fill(&mut self, pool: &TokenPool, target: u64, until_ms: i64) {
        self.retired = 0;
        let before = self.total();
        if target < before {
            _ = self.withdraw(pool, target);
        }
        let missing = target.saturating_sub(before);
        let added = if missing > 0 && pool.put(missing) { missing } else { 0 };
        let milli = self.total() + added;
        self.held.clear();
        self.held.push(HeldTokens { milli, until_ms });
    }

    fn note(&mut self, used: i64) {
        self.used += used;
        self.handed_out_since += float(used);
    }

    /// Takes tokens off the oldest leases; returns the number of those that belong to no lease.
    fn take_off(&mut self, mut milli: u64) -> u64 {
        for held in &mut self.held {
            let part = held.milli.min(milli);
            held.milli -= part;
            milli -= part;
        }
        milli
    }

    /// Notes tokens that were put into the pool. A lease of zero tokens is noted too, because it
    /// gives an age to tokens that are given back.
    pub(super) fn note_lease(&mut self, milli: u64, until_ms: i64) {
        self.held.retain(|held| held.milli > 0 || held.until_ms > until_ms);
        let place = self.held.partition_point(|held| held.until_ms <= until_ms);
        self.held.insert(place, HeldTokens { milli, until_ms });
    }

    /// Notes tokens that were handed out without the pool.
    pub(super) fn hand_out(&mut self, milli: u64) {
        self.note(signed(milli));
    }

    /// Takes all but `keep` out of the pool, the oldest first. Returns their number, and the end of
    /// the oldest lease.
    pub(super) fn withdraw(&mut self, pool: &TokenPool, keep: u64) -> (u64, Option<i64>) {
        let until_ms = self.oldest().or(self.held.last()).map(|held| held.until_ms);
        let withdrawn = pool.drain(pool.tokens().saturating_sub(keep));
        let left = self.take_off(withdrawn);
        // The rest was given back to the pool a moment ago and belongs to no lease.
        self.note(-signed(left));
        (withdrawn, until_ms)
    }

    /// Forgets leases that have no tokens left. Tokens that are given back later then go to the
    /// store.
    pub(super) fn forget_empty(&mut self) {
        self.held.retain(|held| held.milli > 0);
    }

    fn oldest(&self) -> Option<&HeldTokens> {
        self.held.iter().find(|held| held.milli > 0)
    }

    /// The time until which everything in the pool may be handed out. Returns `None` if nothing in
    /// the pool may be handed out.
    pub(super) fn until_ms(&self, now_ms: i64) -> Option<i64> {
        let newest = || self.held.last().filter(|held| held.until_ms >= now_ms);
        self.oldest().or_else(newest).map(|held| held.until_ms)
    }

    /// The end of the last lease, which may have passed.
    pub(super) fn ends_ms(&self) -> Option<i64> {
        self.held.last().map(|held| held.until_ms)
    }

    /// Observes the rate at which tokens are handed out, and returns the number for `horizon_ms`. A
    /// higher rate replaces the old one at once. A lower rate is averaged in. Its weight is the
    /// observed time divided by `horizon_ms`.
    pub(super) fn expect(&mut self, now_ms: i64, horizon_ms: i64) -> u64 {
        if self.observed_at.is_to_come(now_ms) {
            // The clock was set back, so the time in which these were handed out is unknown.
            (self.observed_at, self.handed_out_since) = (Moment::of(now_ms), 0.0);
        }
        let (elapsed, shortest) = (self.observed_at.age_ms(now_ms), horizon_ms / SHORTEST);
        let seen = self.handed_out_since.max(0.0) / float(elapsed.max(shortest).max(1));
        if elapsed >= shortest {
            let weight = if seen > self.rate { 1.0 } else { float(elapsed) / float(horizon_ms) };
            self.rate += weight.min(1.0) * (seen - self.rate);
            (self.observed_at, self.handed_out_since) = (Moment::of(now_ms), 0.0);
        } else {
            self.rate = self.rate.max(seen);
        }
        self.expected(horizon_ms)
    }

    /// The tokens handed out in `horizon_ms` at the observed rate.
    pub(super) fn expected(&self, horizon_ms: i64) -> u64 {
        whole(self.rate * float(horizon_ms))
    }

    /// The size of the last lease.
    pub(super) fn last_lease(&self) -> u64 {
        whole(self.last_lease)
    }

    pub(super) fn set_last_lease(&mut self, milli: u64) {
        self.last_lease = float(signed(milli));
    }

    /// The largest request so far.
    pub(super) fn largest_request(&self) -> u64 {
        whole(self.largest_request)
    }

    pub(super) fn note_request(&mut self, milli: u64) {
        self.largest_request = self.largest_request.max(float(signed(milli)));
    }

    /// Returns the number of takes since the last call.
    pub(super) fn count_new_takes(&mut self, pool: &TokenPool) -> u32 {
        let before = std::mem::replace(&mut self.takes_seen, pool.takes());
        self.takes_seen.wrapping_sub(before) % TAKES
    }
}

pub(super) fn signed(milli: u64) -> i64 {
    i64::try_from(milli).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(milli: i64) -> u64 {
    u64::try_from(milli).unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "sizes and rates need no more precision")]
fn float(number: i64) -> f32 {
    number as f32
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and no size or rate is negative"
)]
fn whole(number: f32) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leasing::atomic_bucket::{AtomicBucket, Demand, PutResult, TakeResult};

    fn atomic(limit_ledger: &mut LimitLedger, leases: &[(u64, i64)]) -> AtomicBucket {
        let atomic = AtomicBucket::new(1);
        atomic.set_times(i64::MAX, 0);
        for (milli, until_ms) in leases {
            put(&atomic, *milli);
            limit_ledger.note_lease(*milli, *until_ms);
        }
        atomic
    }

    fn put(atomic: &AtomicBucket, milli: u64) {
        assert_ne!(atomic.put(0, milli), PutResult::NoRoom);
    }

    fn take(atomic: &AtomicBucket, milli: u64) {
        assert_ne!(atomic.take(&[Demand { slot: 0, milli }], 0), TakeResult::NotTaken);
    }

    #[test]
    fn the_oldest_tokens_are_handed_out_first() {
        let mut limit_ledger = LimitLedger::default();
        let atomic = atomic(&mut limit_ledger, &[(10, 100), (10, 200)]);
        take(&atomic, 12);
        limit_ledger.catch_up(&atomic.slots[0].pool, 150);
        assert_eq!((limit_ledger.retired, limit_ledger.used), (0, 12));
        assert_eq!(limit_ledger.until_ms(150), Some(200));
    }

    #[test]
    fn tokens_that_are_too_old_leave_the_pool_and_the_others_stay() {
        let mut limit_ledger = LimitLedger::default();
        let atomic = atomic(&mut limit_ledger, &[(10, 100), (10, 200)]);
        take(&atomic, 4);
        limit_ledger.catch_up(&atomic.slots[0].pool, 101);
        assert_eq!((limit_ledger.retired, limit_ledger.used), (6, 4));
        assert_eq!(atomic.slots[0].pool.tokens(), 10);
    }

    #[test]
    fn the_last_lease_is_remembered_and_gives_nothing_an_age() {
        let mut limit_ledger = LimitLedger::default();
        let atomic = atomic(&mut limit_ledger, &[(10, 100), (10, 200)]);
        limit_ledger.catch_up(&atomic.slots[0].pool, 201);
        assert_eq!(
            (limit_ledger.retired, limit_ledger.until_ms(201), limit_ledger.ends_ms()),
            (20, None, Some(200))
        );
        put(&atomic, 5);
        limit_ledger.catch_up(&atomic.slots[0].pool, 202);
        assert_eq!((limit_ledger.retired, atomic.slots[0].pool.tokens()), (25, 0));
        limit_ledger.note_lease(10, 300);
        assert_eq!((limit_ledger.held.len(), limit_ledger.until_ms(202)), (1, Some(300)));
    }

    #[test]
    fn returned_tokens_cancel_handed_out_ones() {
        let mut limit_ledger = LimitLedger::default();
        let atomic = atomic(&mut limit_ledger, &[(10, 100)]);
        take(&atomic, 10);
        put(&atomic, 10);
        limit_ledger.catch_up(&atomic.slots[0].pool, 50);
        assert_eq!((limit_ledger.retired, limit_ledger.used), (0, 0));
        // More comes back than this lease held: the rest is of an earlier one.
        put(&atomic, 5);
        limit_ledger.catch_up(&atomic.slots[0].pool, 50);
        assert_eq!((limit_ledger.used, atomic.slots[0].pool.tokens()), (-5, 15));
        limit_ledger.catch_up(&atomic.slots[0].pool, 101);
        assert_eq!((limit_ledger.retired, limit_ledger.used), (15, -5));
    }

    #[test]
    fn without_a_lease_what_is_given_back_goes_back() {
        let mut limit_ledger = LimitLedger::default();
        let atomic = atomic(&mut limit_ledger, &[]);
        put(&atomic, 7);
        limit_ledger.catch_up(&atomic.slots[0].pool, 50);
        assert_eq!((limit_ledger.retired, limit_ledger.used), (7, -7));
        assert_eq!(atomic.slots[0].pool.tokens(), 0);
    }

    #[test]
    fn leases_that_are_ended_last_no_longer() {
        let mut limit_ledger = LimitLedger::default();
        let atomic = atomic(&mut limit_ledger, &[(10, 100), (10, 200)]);
        limit_ledger.expire_all();
        limit_ledger.catch_up(&atomic.slots[0].pool, 50);
        assert_eq!((limit_ledger.retired, limit_ledger.until_ms(50)), (20, None));
    }

    #[test]
    fn a_rate_rises_at_once_and_falls_by_and_by() {
        let mut limit_ledger = LimitLedger::new(0);
        limit_ledger.hand_out(500);
        assert_eq!(limit_ledger.expect(10, 1_000), 10_000);
        assert_eq!(limit_ledger.expect(100, 1_000), 5_000 + 4_500);
        assert_eq!(limit_ledger.expect(600, 1_000), 4_750);
        assert_eq!(limit_ledger.expect(1_600, 1_000), 0);
    }

    #[test]
    fn a_rate_is_observed_by_a_clock_that_was_set() {
        const HOUR_MS: i64 = 3_600_000;
        for set_ms in [-HOUR_MS, 30 * 24 * HOUR_MS] {
            let mut limit_ledger = LimitLedger::new(0);
            for ms in 1..1_000 {
                limit_ledger.hand_out(1);
                assert!(
                    limit_ledger.expect(set_ms + ms, 1_000) <= 1_000,
                    "set by {set_ms} ms, {ms}"
                );
            }
        }
    }
}
