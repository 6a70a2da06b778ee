//! The tokens that a process holds of one bucket: a few atomics, from which threads take without a
//! lock.
//!
//! A pool is never negative, so tokens that are drained from it were not handed out. Every change
//! is one addition to the one number that takes read: no token is counted twice, in any order of
//! threads.

use smallvec::SmallVec;

use super::sync::{AtomicBool, AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Bits of a pool that hold tokens; the rest count takes.
const TOKEN_BITS: u32 = 44;
const TOKENS: u64 = (1 << TOKEN_BITS) - 1;
const ONE_TAKE: u64 = 1 << TOKEN_BITS;

/// Takes are counted modulo this number.
pub(super) const TAKES: u32 = 1 << (u64::BITS - TOKEN_BITS);

/// The most that a pool can hold: 17 billion tokens.
pub(super) const POOL_MAX: u64 = TOKENS;
/// Every demand is less than this, so a few of them fit into a pool together.
pub(super) const DEMAND_MAX: u64 = POOL_MAX / 4;

/// Tokens of one limit, in millitokens, and the number of takes.
#[derive(Debug, Default)]
pub(super) struct TokenPool(AtomicU64);

impl TokenPool {
    /// Takes `milli` if the pool holds that much; returns the tokens that are left. `step` counts
    /// the take.
    fn take(&self, milli: u64, step: u64) -> Option<u64> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now & TOKENS < milli {
                return None;
            }
            let after = (now - milli).wrapping_add(step);
            match self.0.compare_exchange_weak(now, after, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(after & TOKENS),
                Err(changed) => now = changed,
            }
        }
    }

    /// Undoes a take. Tokens that no longer fit, because other threads filled the pool, stay
    /// consumed.
    fn untake(&self, milli: u64, step: u64) {
        let more = |now: u64| {
            let tokens = (now & TOKENS).saturating_add(milli).min(POOL_MAX);
            Some((now & !TOKENS).wrapping_sub(step) | tokens)
        };
        // The closure always returns a value, so the update cannot fail.
        _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
    }

    /// Adds tokens; false if they do not fit.
    pub(super) fn put(&self, milli: u64) -> bool {
        let more = |now: u64| (milli <= POOL_MAX - (now & TOKENS)).then(|| now + milli);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// Takes out the tokens that are there, at most `most`.
    pub(super) fn drain(&self, most: u64) -> u64 {
        let less = |now: u64| Some(now - (now & TOKENS).min(most));
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        before.map_or(0, |before| (before & TOKENS).min(most))
    }

    /// The tokens in the pool.
    pub(super) fn tokens(&self) -> u64 {
        self.0.load(Ordering::Acquire) & TOKENS
    }

    /// How often tokens were taken, modulo [`TAKES`].
    pub(super) fn takes(&self) -> u32 {
        u32::try_from(self.0.load(Ordering::Relaxed) >> TOKEN_BITS).unwrap_or(0)
    }
}

/// One limit.
#[derive(Debug, Default)]
pub(super) struct LimitSlot {
    pub(super) pool: TokenPool,
    /// With fewer tokens left, it is time to lease more.
    pub(super) low: AtomicU64,
}

/// All limits of one bucket.
#[derive(Debug)]
pub(super) struct AtomicBucket {
    /// The time until which its tokens may be handed out, epoch milliseconds.
    deadline: AtomicI64,
    /// Inline for most buckets: a take then touches one or two cache lines.
    pub(super) slots: SmallVec<[LimitSlot; 1]>,
    /// A renewal starts this many milliseconds before the deadline, with any number of tokens left.
    renew_ms: AtomicU32,
    /// True while the background task watches the bucket.
    watched: AtomicBool,
    /// True while a task is about to lease more.
    pub(super) is_renewing: AtomicBool,
    /// How often the store answered a write of the bucket, modulo 2^16. Two bytes are there anyway
    /// (ADR 10), and nobody compares counts that are more than half a second apart.
    replies: AtomicU16,
}

/// An amount of the limit at an index, in millitokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) slot: u16,
    pub(super) milli: u64,
}

/// The demands of a request on one bucket; few requests have more than two.
pub(super) type Demands = SmallVec<[Demand; 2]>;

/// The result of a take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeResult {
    Taken,
    /// Everything was taken. Few tokens or little time is left, so it is time to lease more.
    TakenAndLow,
    /// Nothing was taken, because there are too few tokens or they are too old.
    NotTaken,
}

/// The result of putting tokens into a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PutResult {
    /// The background task watches the bucket.
    Watched,
    /// The caller must have the bucket watched, or the tokens would stay there forever.
    Unwatched,
    /// The tokens do not fit.
    NoRoom,
}

impl AtomicBucket {
    pub(super) fn new(limits: usize) -> Self {
        Self {
            deadline: AtomicI64::new(i64::MIN),
            slots: (0..limits).map(|_| LimitSlot::default()).collect(),
            renew_ms: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            is_renewing: AtomicBool::new(false),
            replies: AtomicU16::new(0),
        }
    }

    /// Takes the tokens for all demands, or none.
    #[inline]
    pub(super) fn take(&self, demands: &[Demand], now_ms: i64) -> TakeResult {
        let deadline = self.deadline.load(Ordering::Acquire);
        if now_ms > deadline {
            return TakeResult::NotTaken;
        }
        let mut renew = self.is_due_before(deadline, now_ms);
        for (n, demand) in demands.iter().enumerate() {
            let slot = &self.slots[usize::from(demand.slot)];
            let Some(left) = slot.pool.take(demand.milli, step(n)) else {
                self.untake(&demands[..n]);
                return TakeResult::NotTaken;
            };
            renew |= left < slot.low.load(Ordering::Relaxed);
        }
        // Another thread may have put tokens with an earlier deadline. It sets the deadline first.
        if now_ms > self.deadline.load(Ordering::Relaxed) {
            self.untake(demands);
            return TakeResult::NotTaken;
        }
        if renew { TakeResult::TakenAndLow } else { TakeResult::Taken }
    }

    /// True if the tokens for all demands are there, of any age.
    pub(super) fn holds(&self, demands: &[Demand]) -> bool {
        let holds =
            |demand: &Demand| self.slots[usize::from(demand.slot)].pool.tokens() >= demand.milli;
        demands.iter().all(holds)
    }

    #[cold]
    fn untake(&self, demands: &[Demand]) {
        for (n, demand) in demands.iter().enumerate() {
            self.slots[usize::from(demand.slot)].pool.untake(demand.milli, step(n));
        }
    }

    /// Puts tokens into the pool of a limit.
    ///
    /// A put and an [`Self::unwatch`] may run at the same time. Each writes its own value before it
    /// reads the other's, so at least one of them sees both.
    pub(super) fn put(&self, slot: u16, milli: u64) -> PutResult {
        if !self.slots[usize::from(slot)].pool.put(milli) {
            return PutResult::NoRoom;
        }
        fence(Ordering::SeqCst);
        if self.is_watched() { PutResult::Watched } else { PutResult::Unwatched }
    }

    /// True while the background task watches the bucket.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Marks the bucket as watched.
    pub(super) fn watch(&self) {
        self.watched.store(true, Ordering::Release);
    }

    /// Ends the watch if the pools are empty. Otherwise keeps it and returns false.
    pub(super) fn unwatch(&self) -> bool {
        self.watched.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        let is_empty = self.slots.iter().all(|slot| slot.pool.tokens() == 0);
        if !is_empty {
            self.watch();
        }
        is_empty
    }

    /// Shortens the deadline. Call this before putting tokens that end earlier than the others.
    pub(super) fn end_by(&self, deadline_ms: i64) {
        self.deadline.fetch_min(deadline_ms, Ordering::Release);
    }

    pub(super) fn set_times(&self, deadline_ms: i64, renew_ms: u32) {
        self.renew_ms.store(renew_ms, Ordering::Relaxed);
        self.deadline.store(deadline_ms, Ordering::Release);
    }

    /// Counts an answer of the store to a write of the bucket.
    pub(super) fn count_reply(&self) {
        self.replies.fetch_add(1, Ordering::Release);
    }

    /// How often the store answered, modulo 2^16.
    pub(super) fn replies(&self) -> u16 {
        self.replies.load(Ordering::Acquire)
    }

    /// The tokens held of all limits together, in millitokens.
    pub(super) fn held(&self) -> u64 {
        self.slots.iter().map(|slot| slot.pool.tokens()).sum()
    }

    /// True if so few tokens are left that it is time to lease more.
    pub(super) fn is_low(&self) -> bool {
        self.slots.iter().any(|slot| slot.pool.tokens() < slot.low.load(Ordering::Relaxed))
    }

    /// True if the deadline is so near that it is time to lease more.
    pub(super) fn is_due(&self, now_ms: i64) -> bool {
        self.is_due_before(self.deadline.load(Ordering::Relaxed), now_ms)
    }

    fn is_due_before(&self, deadline_ms: i64, now_ms: i64) -> bool {
        now_ms > deadline_ms.saturating_sub(self.renew_ms.load(Ordering::Relaxed).into())
    }
}

/// Only the first of the takes that make one decision is counted.
const fn step(nth: usize) -> u64 {
    if nth == 0 { ONE_TAKE } else { 0 }
}
