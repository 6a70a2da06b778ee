//! Records the tokens that a permit has taken of one bucket, and the effect there of calls that
//! failed as a whole.
//!
//! A call that did not reach every bucket counts as not made. A bucket that it did reach is ahead
//! of the permit, and the next call on that limit sends it that much less. Every change here is an
//! addition that its opposite undoes, so concurrent calls do not disturb one another.

use std::sync::Mutex;

use sluicegate_core::{Amounts, LimitName, Millitokens, RequestId};

use crate::call::new_id;
use crate::error::AdjustError;
use crate::lock::lock;
use crate::store::Adjusted;

/// The change that a call makes in every bucket of a permit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change<'a> {
    /// Adds this amount to one limit, or subtracts it.
    Adjust(&'a LimitName, Millitokens),
    /// Gives everything back.
    GiveBack,
}

/// The log of one bucket.
#[derive(Debug)]
pub(super) struct CorrectionLog {
    /// The tokens taken: acquired, and adjusted since. Tokens on their way back are already
    /// subtracted, and tokens being taken are not yet added. If a caller stops waiting in between,
    /// less can be given back than was taken, never more.
    taken: Amounts,
    /// The lead of the bucket over the calls that succeeded or are in flight.
    ahead: Amounts,
    /// Writes that only take and may have been done. They are sent again under their ids, so they
    /// take effect once.
    open: Vec<Write>,
}

/// One write to the bucket.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) id: RequestId,
    pub(super) amounts: Amounts,
    /// The part of the lead that it uses up.
    uses: Amounts,
    /// The lead of the bucket after it, if the call does not reach all buckets.
    leaves: Amounts,
    /// True if an earlier call may have done it.
    is_open: bool,
}

impl CorrectionLog {
    pub(super) const fn new(taken: Amounts) -> Self {
        Self { taken, ahead: Amounts::new(), open: Vec::new() }
    }

    /// The tokens taken of a limit.
    pub(super) fn taken(&self, limit: &LimitName) -> Millitokens {
        self.taken.of(limit)
    }

    /// A write of an earlier call on the same limits, which must be settled before this one.
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

    /// The write that makes the change in this bucket.
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

    /// Notes the result of a write; `None`: its caller stopped waiting. Returns the lead of the
    /// bucket over the others.
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
            // Tokens that may have been given back count as given back.
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

/// A write of a call, until the call ends or its caller stops waiting.
#[derive(Debug)]
pub(super) struct UnderWay<'a> {
    logs: &'a Mutex<Vec<CorrectionLog>>,
    index: usize,
    /// The write while it is in flight.
    write: Option<Write>,
    /// The lead of its bucket over the others when the call ends.
    ahead: Amounts,
}

impl<'a> UnderWay<'a> {
    pub(super) const fn new(
        logs: &'a Mutex<Vec<CorrectionLog>>,
        index: usize,
        write: Write,
    ) -> Self {
        Self { logs, index, write: Some(write), ahead: Amounts::new() }
    }

    /// The write to be sent, if there is one.
    pub(super) fn write(&self) -> Option<&Write> {
        self.write.as_ref().filter(|write| !write.amounts.is_empty())
    }

    pub(super) fn settle(&mut self, result: Option<&Result<Adjusted, AdjustError>>) {
        if let Some(write) = self.write.take() {
            self.ahead = lock(self.logs)[self.index].settle(write, result);
        }
    }

    /// Notes that the call reached every bucket: its amounts are no lead of this one.
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
        lock(self.logs)[self.index].ahead += &self.ahead;
    }
}

fn is_decrease((_, by): &(&LimitName, &Millitokens)) -> bool {
    **by < Millitokens::ZERO
}

fn owned<'a>(amounts: impl Iterator<Item = (&'a LimitName, &'a Millitokens)>) -> Amounts {
    amounts.map(|(limit, by)| (limit.clone(), *by)).collect()
}

/// The nearest amount in range.
pub(super) fn clamped(milli: i64) -> Millitokens {
    let end = if milli < 0 { Millitokens::MIN } else { Millitokens::MAX };
    Millitokens::new(milli).unwrap_or(end)
}
