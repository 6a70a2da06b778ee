//! The tokens that a process holds of one bucket: a few atomics, from which threads take without a
//! lock.
//!
//! A pool never holds less than nothing, so whoever drains it knows that what is drained was handed
//! to nobody. Every change is an addition to the one number that takes are made of: no token is
//! there twice, in whatever order threads come.

use smallvec::SmallVec;

use super::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// Bits of a pool that are tokens; the rest counts takes.
const TOKEN_BITS: u32 = 44;
const TOKENS: u64 = (1 << TOKEN_BITS) - 1;
const ONE_TAKE: u64 = 1 << TOKEN_BITS;

/// Takes that a pool can tell apart: it counts modulo this.
pub(super) const TAKES: u32 = 1 << (u64::BITS - TOKEN_BITS);

/// The most that a pool can hold: 17 billion tokens.
pub(super) const POOL_MAX: u64 = TOKENS;

/// Tokens of one limit, in millitokens, and how often some were taken.
#[derive(Debug, Default)]
pub(super) struct TokenPool(AtomicU64);

/// Whether a take is a decision of its own, or one of several that make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    Yes,
    No,
}

impl TokenPool {
    /// Takes, if all of it is there; what is left.
    fn take(&self, milli: u64, counts: Counts) -> Option<u64> {
        let step = if counts == Counts::Yes { ONE_TAKE } else { 0 };
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

    /// Takes back a take that was undone. What no longer fits, since others filled the pool meanwhile,
    /// stays consumed.
    fn untake(&self, milli: u64, counts: Counts) {
        let step = if counts == Counts::Yes { ONE_TAKE } else { 0 };
        let more = |now: u64| {
            let tokens = (now & TOKENS).saturating_add(milli).min(POOL_MAX);
            Some((now & !TOKENS).wrapping_sub(step) | tokens)
        };
        // The update never declines.
        _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
    }

    /// Adds tokens; false when they do not fit.
    pub(super) fn put(&self, milli: u64) -> bool {
        let more = |now: u64| (milli <= POOL_MAX - (now & TOKENS)).then(|| now + milli);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// Takes out as much as is there, `most` at most.
    pub(super) fn drain(&self, most: u64) -> u64 {
        let less = |now: u64| Some(now - (now & TOKENS).min(most));
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        before.map_or(0, |before| (before & TOKENS).min(most))
    }

    /// What is there.
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
pub(super) struct LimitCounter {
    pub(super) pool: TokenPool,
    /// With less than this left it is time to lease more.
    pub(super) low: AtomicU64,
}

/// All limits of one bucket.
#[derive(Debug)]
pub(super) struct AtomicBucket {
    /// Until when its tokens may be handed out, epoch milliseconds.
    deadline: AtomicI64,
    /// In place for most buckets: a take then touches one line of memory and the next.
    pub(super) slots: SmallVec<[LimitCounter; 1]>,
    /// So many milliseconds before the deadline it is time to lease more, however many are left.
    lead: AtomicU32,
    /// Whether somebody looks after what is put here.
    watched: AtomicBool,
    /// Somebody is about to lease more.
    pub(super) is_renewing: AtomicBool,
}

/// An amount of the limit at an index, in millitokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) slot: u16,
    pub(super) milli: u64,
}

/// What became of a take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeResult {
    All,
    /// All of it, and it is time to lease more.
    AndRenew,
    /// Nothing: what is there is too little or too old.
    Nothing,
}

impl AtomicBucket {
    pub(super) fn new(limits: usize) -> Self {
        Self {
            deadline: AtomicI64::new(i64::MIN),
            slots: (0..limits).map(|_| LimitCounter::default()).collect(),
            lead: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            is_renewing: AtomicBool::new(false),
        }
    }

    /// Takes everything that is asked, or nothing.
    #[inline]
    pub(super) fn take(&self, asks: &[Demand], now_ms: i64) -> TakeResult {
        let deadline = self.deadline.load(Ordering::Acquire);
        if now_ms > deadline {
            return TakeResult::Nothing;
        }
        let mut renew = self.is_due_before(deadline, now_ms);
        for (n, ask) in asks.iter().enumerate() {
            let slot = &self.slots[usize::from(ask.slot)];
            let Some(left) = slot.pool.take(ask.milli, counts(n)) else {
                self.untake(&asks[..n]);
                return TakeResult::Nothing;
            };
            renew |= left < slot.low.load(Ordering::Relaxed);
        }
        // Tokens that do not last as long may have come meanwhile: their deadline came before them.
        if now_ms > self.deadline.load(Ordering::Relaxed) {
            self.untake(asks);
            return TakeResult::Nothing;
        }
        if renew { TakeResult::AndRenew } else { TakeResult::All }
    }

    /// Whether everything that is asked is there, however old it is.
    pub(super) fn holds(&self, asks: &[Demand]) -> bool {
        let holds = |ask: &Demand| self.slots[usize::from(ask.slot)].pool.tokens() >= ask.milli;
        asks.iter().all(holds)
    }

    #[cold]
    fn untake(&self, asks: &[Demand]) {
        for (n, ask) in asks.iter().enumerate() {
            self.slots[usize::from(ask.slot)].pool.untake(ask.milli, counts(n));
        }
    }

    /// Puts tokens into the pool of a limit. False when somebody must be found who looks after them,
    /// or they would lie there for ever; `None` when they do not fit.
    ///
    /// A put and a [`Self::unwatch`] at the same time: each writes first and then looks at what the
    /// other writes, so at least one of them sees both.
    pub(super) fn put(&self, slot: u16, milli: u64) -> Option<bool> {
        let is_in = self.slots[usize::from(slot)].pool.put(milli);
        is_in.then(|| {
            fence(Ordering::SeqCst);
            self.watched.load(Ordering::Acquire)
        })
    }

    /// Whether somebody looks after it.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// From now on somebody looks after it.
    pub(super) fn watch(&self) {
        self.watched.store(true, Ordering::Release);
    }

    /// Nobody looks after it any more; false, and somebody still does, when there are tokens.
    pub(super) fn unwatch(&self) -> bool {
        self.watched.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        let is_empty = self.slots.iter().all(|slot| slot.pool.tokens() == 0);
        if !is_empty {
            self.watch();
        }
        is_empty
    }

    /// Its tokens may be handed out no longer than this from now on: said before some are put here
    /// that do not last as long as the others.
    pub(super) fn end_by(&self, deadline_ms: i64) {
        self.deadline.fetch_min(deadline_ms, Ordering::Release);
    }

    pub(super) fn set_times(&self, deadline_ms: i64, lead_ms: u32) {
        self.lead.store(lead_ms, Ordering::Relaxed);
        self.deadline.store(deadline_ms, Ordering::Release);
    }

    /// Whether it is time to lease more because of what is left.
    pub(super) fn is_low(&self) -> bool {
        self.slots.iter().any(|slot| slot.pool.tokens() < slot.low.load(Ordering::Relaxed))
    }

    /// Whether it is time to lease more because of the time.
    pub(super) fn is_due(&self, now_ms: i64) -> bool {
        self.is_due_before(self.deadline.load(Ordering::Relaxed), now_ms)
    }

    fn is_due_before(&self, deadline_ms: i64, now_ms: i64) -> bool {
        now_ms > deadline_ms.saturating_sub(self.lead.load(Ordering::Relaxed).into())
    }
}

const fn counts(nth: usize) -> Counts {
    if nth == 0 { Counts::Yes } else { Counts::No }
}
