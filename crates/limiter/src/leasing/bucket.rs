//! One bucket of which this process holds tokens: the cell that threads take from, and the books
//! that say what is in it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluicegate_core::{Amounts, BucketId, LimitName, Millitokens};
use tokio::time::Instant;

use super::account::Account;
use super::books::{Books, Times};
use super::cell::{Ask, Cell, POOL_MAX};
use super::settings::{LeaseMode, LeaseSettings};
use crate::clock::ROUGH;

const ROUGH_MS: i64 = 10;
const _: () = assert!(ROUGH.as_millis() == ROUGH_MS as u128);

#[derive(Debug)]
#[repr(C)]
pub(super) struct Bucket {
    /// First what every take looks at: it then touches as few lines of memory as there can be.
    pub(super) cell: Cell,
    /// The limits of the cell's slots.
    pub(super) limits: Arc<[LimitName]>,
    pub(super) id: BucketId,
    /// Somebody is about to lease more.
    pub(super) is_renewing: AtomicBool,
    /// `None`: nothing is held and nothing is to be settled.
    books: Mutex<Option<Box<Books>>>,
}

impl Bucket {
    pub(super) fn new(id: BucketId, limits: Arc<[LimitName]>) -> Self {
        let cell = Cell::new(limits.len());
        let is_renewing = AtomicBool::new(false);
        Self { id, limits, cell, is_renewing, books: Mutex::default() }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Option<Box<Books>>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the store has said something to a write of it.
    pub(super) fn was_answered_since(&self, start: Instant) -> bool {
        self.books().as_ref().and_then(|books| books.answered_at).is_some_and(|at| at >= start)
    }

    /// What is asked, by slot; `None`: some of it cannot be leased.
    pub(super) fn asks(&self, amounts: &Amounts) -> Option<Vec<Ask>> {
        let ask = |(limit, amount): (&LimitName, &Millitokens)| {
            let milli = u64::try_from(amount.get()).ok().filter(|milli| *milli < POOL_MAX / 4)?;
            Some(Ask { slot: self.slot(limit)?, milli })
        };
        amounts.iter().map(ask).collect()
    }

    pub(super) fn slot(&self, limit: &LimitName) -> Option<u16> {
        let slot = self.limits.iter().position(|known| known == limit)?;
        u16::try_from(slot).ok()
    }

    /// Takes over what happened to the pools, and says until when they may be taken from.
    pub(super) fn catch_up(&self, books: &mut Books, times: Times) {
        // By a clock that was set back, tokens would seem younger than they are.
        let is_set_back = times.now < books.seen_ms;
        books.seen_ms = times.now;
        for (account, slot) in books.accounts.iter_mut().zip(self.cell.slots.iter()) {
            account.catch_up(&slot.pool, if is_set_back { i64::MAX } else { times.now });
        }
        self.tell(books, times);
    }

    /// Tells the cell how long its tokens last.
    pub(super) fn tell(&self, books: &Books, times: Times) {
        let deadline = books.accounts.iter().filter_map(Account::until_ms).min();
        // Those who take look at a clock that may be late.
        let deadline = deadline.unwrap_or(i64::MIN).saturating_sub(ROUGH_MS);
        // Who asks once in a while does not need tokens in store.
        let is_busy = |account: &Account| account.expected(times.lead) >= account.unit.max(1);
        let lead = if books.accounts.iter().any(is_busy) { times.lead } else { 0 };
        self.cell.set_times(deadline, deadline.saturating_sub(lead));
        for (account, slot) in books.accounts.iter().zip(self.cell.slots.iter()) {
            let low = account.expected(2 * times.lead).min(account.last / 2);
            slot.low.store(low, Ordering::Relaxed);
        }
    }

    /// Whether it is time to tell the store what is open, although nobody asks for more.
    pub(super) fn is_to_be_settled(
        &self,
        books: &Books,
        settings: &LeaseSettings,
        now_ms: i64,
    ) -> bool {
        let half = settings.max_age_ms() / 2;
        if !books.has_open(settings) {
            return false;
        }
        match settings.mode {
            // Most buckets are asked again before that, and then it costs no write of its own.
            LeaseMode::Strict(_) => books.is_empty() && now_ms > books.ends_ms.saturating_add(half),
            LeaseMode::WriteBehind { .. } => {
                books.is_empty() || books.open_for_ms(now_ms).is_some_and(|age| age > half)
            }
        }
    }

    /// Tokens that were debited and not handed out, and those that were handed out and not counted.
    pub(super) fn left(&self, settings: &LeaseSettings) -> (u64, u64) {
        let Some(mut books) = self.books().take() else { return (0, 0) };
        for (account, slot) in books.accounts.iter_mut().zip(self.cell.slots.iter()) {
            account.catch_up(&slot.pool, i64::MAX);
        }
        let unused = books.accounts.iter().map(|account| account.retired).sum();
        let uncounted = books.accounts.iter().map(|a| (a.used + a.in_flight).unsigned_abs()).sum();
        match settings.mode {
            LeaseMode::Strict(super::Accounting::AtLease) => (unused, 0),
            LeaseMode::Strict(super::Accounting::AtSettle) => (unused, uncounted),
            LeaseMode::WriteBehind { .. } => (0, uncounted),
        }
    }
}
