//! What a lease has taken of one bucket, and what calls that failed as a whole left behind there.
//!
//! A call that did not reach every bucket counts as not made: a bucket that it did reach is ahead
//! of the lease, and the next call on that limit sends it so much less. Every change here is an
//! addition that its opposite undoes, so calls under way at once do not disturb one another.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_core::{Amounts, LimitName, Millitokens, RequestId};

use crate::error::AdjustError;
use crate::store::{Adjusted, new_id};

/// What a call asks of every bucket of a lease.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change<'a> {
    /// So much more or less of one limit.
    Adjust(&'a LimitName, Millitokens),
    /// All of it.
    GiveBack,
}

/// The account of one bucket.
#[derive(Debug)]
pub(super) struct CorrectionLog {
    /// What is taken: acquired, and adjusted since. What is on its way back is off already, and
    /// what is being taken is not on yet: whenever a caller stops waiting in between, less can be
    /// given back than was taken, never more.
    taken: Amounts,
    /// By how much it is ahead of what the calls that succeeded, or are under way, come to.
    ahead: Amounts,
    /// Writes that only take and may have been done: sent again under their ids they are done once.
    open: Vec<Write>,
}

/// One write to the bucket.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) id: RequestId,
    pub(super) amounts: Amounts,
    /// What it uses up of what the bucket is ahead.
    uses: Amounts,
    /// By how much the bucket is ahead after it if the call does not reach all of them.
    leaves: Amounts,
    /// It may have been done by an earlier call.
    is_open: bool,
}

impl CorrectionLog {
    pub(super) const fn new(taken: Amounts) -> Self {
        Self { taken, ahead: Amounts::new(), open: Vec::new() }
    }

    /// What is taken of a limit.
    pub(super) fn taken(&self, limit: &LimitName) -> Millitokens {
        self.taken.of(limit)
    }

    /// A write of an earlier call that this one concerns and that must be settled before it.
    pub(super) fn reopen(&mut self, change: Change<'_>) -> Option<Write> {
        let concerns = |write: &Write| match change {
            Change::Adjust(limit, _) => write.amounts.contains_key(limit),
            Change::GiveBack => true,
        };
        let at = self.open.iter().position(concerns)?;
        let write = self.open.remove(at);
        self.begin(&write);
        Some(write)
    }

    /// What the change comes to here.
    pub(super) fn start(&mut self, change: Change<'_>) -> Write {
        let (amounts, uses, leaves) = match change {
            Change::Adjust(limit, by) => {
                let ahead = self.ahead.of(limit);
                let missing = clamped(by.get().saturating_sub(ahead.get()));
                let leaves = clamped(ahead.get().saturating_add(missing.get()));
                let of = |amount| Amounts::from([(limit.clone(), amount)]);
                (of(missing), of(ahead), of(leaves))
            }
            Change::GiveBack => (-&self.taken, self.ahead.clone(), Amounts::new()),
        };
        let is_nonzero = |(_, amount): &(LimitName, Millitokens)| *amount != Millitokens::ZERO;
        let amounts = amounts.into_iter().filter(is_nonzero).collect();
        let write = Write { id: new_id(), amounts, uses, leaves, is_open: false };
        self.begin(&write);
        write
    }

    fn begin(&mut self, write: &Write) {
        self.taken += &owned(write.amounts.iter().filter(is_decrease));
        self.ahead -= &write.uses;
    }

    /// Notes what became of a write; `None`: its caller stopped waiting. By so much the bucket is
    /// now ahead of the others.
    fn settle(
        &mut self,
        mut write: Write,
        result: Option<&Result<Adjusted, AdjustError>>,
    ) -> Amounts {
        let only_takes = !write.amounts.iter().any(|change| is_decrease(&change));
        write.is_open |=
            only_takes && matches!(result, Some(Err(AdjustError::Unavailable(_))) | None);
        match result {
            Some(Ok(adjusted)) => return self.done(write, &adjusted.dropped),
            _ if write.is_open => {
                self.undo(&write);
                self.open.push(write);
            }
            // What may have been given back counts as given back.
            Some(Err(AdjustError::Ambiguous(_))) | None => return write.leaves,
            Some(Err(_)) => self.undo(&write),
        }
        Amounts::new()
    }

    fn done(&mut self, write: Write, dropped: &[LimitName]) -> Amounts {
        let is_dropped = |(limit, _): &(&LimitName, &Millitokens)| dropped.contains(limit);
        let (gone, there): (Vec<_>, Vec<_>) = write.amounts.iter().partition(is_dropped);
        self.taken -= &owned(gone.into_iter().filter(is_decrease));
        self.taken += &owned(there.into_iter().filter(|change| !is_decrease(change)));
        owned(write.leaves.iter().filter(|change| !is_dropped(change)))
    }

    fn undo(&mut self, write: &Write) {
        self.taken -= &owned(write.amounts.iter().filter(is_decrease));
        self.ahead += &write.uses;
    }
}

/// A write of a call, until the call is over or nobody waits for it any more.
#[derive(Debug)]
pub(super) struct UnderWay<'a> {
    accounts: &'a Mutex<Vec<CorrectionLog>>,
    index: usize,
    /// The write while it is under way.
    write: Option<Write>,
    /// By how much its bucket is ahead of the others when the call ends.
    ahead: Amounts,
}

impl<'a> UnderWay<'a> {
    pub(super) const fn new(
        accounts: &'a Mutex<Vec<CorrectionLog>>,
        index: usize,
        write: Write,
    ) -> Self {
        Self { accounts, index, write: Some(write), ahead: Amounts::new() }
    }

    /// What is to be sent, if anything is.
    pub(super) fn write(&self) -> Option<&Write> {
        self.write.as_ref().filter(|write| !write.amounts.is_empty())
    }

    pub(super) fn settle(&mut self, result: Option<&Result<Adjusted, AdjustError>>) {
        if let Some(write) = self.write.take() {
            self.ahead = lock(self.accounts)[self.index].settle(write, result);
        }
    }

    /// The call has reached every bucket: this one is not ahead by what it asked for.
    pub(super) fn is_level_after(&mut self, change: Change<'_>) {
        if let Change::Adjust(limit, by) = change
            && let Some(ahead) = self.ahead.get_mut(limit)
        {
            *ahead = clamped(ahead.get().saturating_sub(by.get()));
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.settle(None);
        lock(self.accounts)[self.index].ahead += &self.ahead;
    }
}

pub(super) fn lock(accounts: &Mutex<Vec<CorrectionLog>>) -> MutexGuard<'_, Vec<CorrectionLog>> {
    accounts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_decrease((_, by): &(&LimitName, &Millitokens)) -> bool {
    **by < Millitokens::ZERO
}

fn owned<'a>(amounts: impl Iterator<Item = (&'a LimitName, &'a Millitokens)>) -> Amounts {
    amounts.map(|(limit, by)| (limit.clone(), *by)).collect()
}

/// The nearest amount that can be.
pub(super) fn clamped(milli: i64) -> Millitokens {
    let end = if milli < 0 { Millitokens::MIN } else { Millitokens::MAX };
    Millitokens::new(milli).unwrap_or(end)
}
