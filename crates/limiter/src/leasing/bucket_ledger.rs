//! The ledger of a bucket: everything known of its tokens except their number, which is in the
//! [`AtomicBucket`](super::atomic_bucket::AtomicBucket).

use std::num::NonZeroU64;
use std::sync::Arc;

use sluicegate_core::{Amounts, Configuration, LimitName, RequestId};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::atomic_bucket::AtomicBucket;
use super::interner::Interner;
use super::lease_plan::LeasePlan;
use super::limit_ledger::LimitLedger;
use super::moment::Moment;
use super::settings::{Accounting, LeaseMode, LeaseSettings};
use super::waiters::Waiters;
use crate::leasing_store::LeaseInDoubt;

/// A bit that no id uses.
const SOME: u64 = 1 << 63;

/// Kept small, as there may be one for every user.
#[derive(Debug)]
pub(super) struct BucketLedger {
    /// One for each limit; inline for most buckets.
    pub(super) limit_ledgers: SmallVec<[LimitLedger; 1]>,
    pub(super) configuration: Arc<Configuration>,
    /// The last time that a take or a lease for a request was noticed. `make_room` evicts the
    /// buckets with the oldest one.
    pub(super) used_at: Moment,
    /// When the oldest use that the store does not know of was noticed.
    unreported_since: Moment,
    /// The bits of the id of the last write that was answered, with [`SOME`].
    last_answered_id: Option<NonZeroU64>,
    unfinished: Option<Box<Unfinished>>,
}

/// Exists while a task writes, and while a write has no answer.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// Allows one write at a time.
    write_lock: Option<Arc<tokio::sync::Mutex<()>>>,
    /// Requests that wait for a write, and may be served by another request's write.
    pub(super) waiters: Waiters,
    /// When a write was last answered, with any result.
    pub(super) last_reply_at: Option<Instant>,
    /// A write in doubt, with its plan.
    pub(super) in_doubt: Option<Box<(LeaseInDoubt, LeasePlan)>>,
    /// A commit in flight or in doubt.
    pub(super) commit: Option<Commit>,
}

/// The amounts that a commit adds to the consumption at the store.
#[derive(Debug, Clone)]
pub(super) struct Commit {
    pub(super) id: RequestId,
    pub(super) amounts: Amounts,
}

impl BucketLedger {
    pub(super) fn new(limits: usize, configuration: Arc<Configuration>, now_ms: i64) -> Self {
        Self {
            limit_ledgers: (0..limits).map(|_| LimitLedger::new(now_ms)).collect(),
            configuration,
            used_at: Moment::of(now_ms),
            unreported_since: Moment::of(now_ms),
            last_answered_id: None,
            unfinished: None,
        }
    }

    /// Gives the bucket these limits from now on. A limit that only another request brought stays,
    /// because that request may wait for tokens of it. So do the stored limits, if this request did
    /// not need any.
    pub(super) fn follow(&mut self, configuration: &Arc<Configuration>, interner: &Interner) {
        if self.configuration == *configuration {
            return;
        }
        // Another copy of the same limits would take a kilobyte.
        match configuration.completed_by(&self.configuration) {
            None => self.configuration = interner.same(configuration),
            Some(both) if both == *self.configuration => {}
            Some(both) => self.configuration = interner.same(&Arc::new(both)),
        }
    }

    /// The lock that a task holds while it writes.
    pub(super) fn write_lock(&mut self) -> Arc<tokio::sync::Mutex<()>> {
        self.unfinished().write_lock.get_or_insert_default().clone()
    }

    /// True if a task writes or waits to write.
    pub(super) fn is_in_use(&self) -> bool {
        let lock = self.unfinished.as_ref().and_then(|unfinished| unfinished.write_lock.as_ref());
        lock.is_some_and(|lock| Arc::strong_count(lock) > 1)
    }

    pub(super) fn unfinished(&mut self) -> &mut Unfinished {
        self.unfinished.get_or_insert_default()
    }

    /// The ledgers of the limits, and the requests that wait for their tokens.
    pub(super) fn ledgers_and_waiters(&mut self) -> (&mut [LimitLedger], Option<&Waiters>) {
        let waiters = self.unfinished.as_deref().map(|unfinished| &unfinished.waiters);
        (&mut self.limit_ledgers, waiters)
    }

    /// Drops the state of a write, if no other task writes or waits to write.
    pub(super) fn tidy(&mut self) {
        if !self.is_in_use()
            && let Some(unfinished) = &mut self.unfinished
        {
            unfinished.write_lock = None;
            unfinished.waiters = Waiters::default();
            if unfinished.in_doubt.is_none() && unfinished.commit.is_none() {
                self.unfinished = None;
            }
        }
    }

    /// The last write that was answered.
    pub(super) fn last_answered_id(&self) -> Option<RequestId> {
        self.last_answered_id.map(|bits| RequestId::from_bits(bits.get()))
    }

    pub(super) fn note_answered(&mut self, id: &RequestId) {
        self.last_answered_id = id.bits().and_then(|bits| NonZeroU64::new(bits | SOME));
    }

    pub(super) fn last_reply_at(&self) -> Option<Instant> {
        self.unfinished.as_ref()?.last_reply_at
    }

    pub(super) fn commit(&self) -> Option<&Commit> {
        self.unfinished.as_ref()?.commit.as_ref()
    }

    /// The amount of a limit that a commit is adding at the store, in millitokens.
    pub(super) fn committing(&self, limit: &LimitName) -> i64 {
        self.commit().and_then(|commit| commit.amounts.get(limit)).map_or(0, |milli| milli.get())
    }

    fn has_lease_in_doubt(&self) -> bool {
        self.unfinished.as_ref().is_some_and(|unfinished| unfinished.in_doubt.is_some())
    }

    /// Counts the takes since the last call, and notes that the bucket was used if there were any.
    pub(super) fn count_takes(&mut self, atomic: &AtomicBucket, now_ms: i64) -> u64 {
        let limits = self.limit_ledgers.iter_mut().zip(&atomic.slots);
        let takes = limits.map(|(limit_ledger, slot)| limit_ledger.count_new_takes(&slot.pool));
        let takes = takes.map(u64::from).sum();
        if takes > 0 {
            self.used_at = Moment::of(now_ms);
        }
        takes
    }

    /// True if nothing is left to hand out.
    pub(super) fn is_empty(&self, now_ms: i64) -> bool {
        self.limit_ledgers.iter().all(|limit_ledger| limit_ledger.until_ms(now_ms).is_none())
    }

    /// When the last lease ends or ended.
    pub(super) fn ends_ms(&self) -> Option<i64> {
        self.limit_ledgers.iter().filter_map(LimitLedger::ends_ms).max()
    }

    /// True if the store must be told something.
    pub(super) fn has_unreported(&self, settings: &LeaseSettings) -> bool {
        let is_retired = || self.limit_ledgers.iter().any(|limit_ledger| limit_ledger.retired > 0);
        self.has_lease_in_doubt()
            || match settings.mode {
                LeaseMode::Strict(Accounting::AtLease) => is_retired(),
                LeaseMode::Strict(Accounting::AtSettle) => is_retired() || self.has_used(),
                LeaseMode::WriteBehind { .. } => self.has_used() || self.commit().is_some(),
            }
    }

    fn has_used(&self) -> bool {
        self.limit_ledgers.iter().any(|limit_ledger| limit_ledger.used != 0)
    }

    fn has_unreported_use(&self) -> bool {
        self.has_used() || self.commit().is_some()
    }

    /// Starts the age of unreported use, unless it runs already. Call this before a use is noted.
    pub(super) fn start_unreported_age(&mut self, now_ms: i64) {
        if !self.has_unreported_use() {
            self.restart_unreported_age(now_ms);
        }
    }

    /// Starts the age of unreported use again.
    pub(super) fn restart_unreported_age(&mut self, now_ms: i64) {
        self.unreported_since = Moment::of(now_ms);
    }

    /// The age of the oldest use or return that the store was not told of.
    pub(super) fn unreported_for_ms(&self, now_ms: i64) -> Option<i64> {
        self.has_unreported_use().then(|| self.unreported_since.age_ms(now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_write_is_gone_after_the_last_one() {
        let mut ledger = BucketLedger::new(1, Arc::default(), 0);
        let lock = ledger.write_lock();
        assert!(Arc::ptr_eq(&lock, &ledger.write_lock()));
        ledger.tidy();
        assert!(ledger.is_in_use());
        drop(lock);
        ledger.unfinished().commit =
            Some(Commit { id: RequestId::from_bits(1), amounts: Amounts::new() });
        ledger.tidy();
        assert!(!ledger.is_in_use() && ledger.commit().is_some());
        ledger.unfinished().commit = None;
        ledger.tidy();
        assert!(ledger.unfinished.is_none());
    }

    #[test]
    fn unreported_use_has_the_age_of_the_oldest() {
        let mut ledger = BucketLedger::new(1, Arc::default(), 0);
        assert_eq!(ledger.unreported_for_ms(5), None);
        ledger.start_unreported_age(10);
        ledger.limit_ledgers[0].hand_out(1);
        ledger.start_unreported_age(20);
        ledger.limit_ledgers[0].hand_out(1);
        assert_eq!(ledger.unreported_for_ms(30), Some(20));
        ledger.limit_ledgers[0].used = 0;
        assert_eq!(ledger.unreported_for_ms(30), None);
    }

    #[test]
    fn the_last_write_is_remembered() {
        let mut ledger = BucketLedger::new(1, Arc::default(), 0);
        assert_eq!(ledger.last_answered_id(), None);
        for bits in [0, 1 << 59] {
            ledger.note_answered(&RequestId::from_bits(bits));
            assert_eq!(ledger.last_answered_id(), Some(RequestId::from_bits(bits)));
        }
    }
}
