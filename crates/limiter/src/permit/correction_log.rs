//! Records the tokens that a permit has taken of one bucket, and the effect there of calls that
//! failed as a whole.
//!
//! If an adjustment fails, it counts as not made. If it reached one of the buckets, the tokens
//! taken there differ from those that the permit counts: the difference is the *surplus*. The next
//! call on that limit corrects the bucket by its own amount less the surplus. Tokens that
//! [`CorrectionChange::GiveBack`] returned are no surplus: they stay given back. The log
//! only adds and subtracts, so concurrent calls may finish in any order.

use std::sync::Mutex;

use sluicegate_core::{Amounts, LimitName, Millitokens, RequestId};

use crate::call::new_id;
use crate::error::AdjustError;
use crate::lock::lock;
use crate::store::Adjusted;

/// The change that a call makes in one bucket of a permit.
#[derive(Debug, Clone, Copy)]
pub(super) enum CorrectionChange<'a> {
    /// Adds these amounts, or subtracts negative ones.
    Adjust(&'a Amounts),
    /// Gives everything back.
    GiveBack,
}

/// The log of one bucket.
#[derive(Debug)]
pub(super) struct CorrectionLog {
    /// The tokens taken: acquired, and adjusted since. Refunds are subtracted when they are sent;
    /// debits are added when they are answered. A caller that leaves in between loses tokens and
    /// gains none.
    taken: Amounts,
    /// The amounts taken here by calls that failed as a whole. The next call on a limit uses up
    /// this surplus: an adjustment counts the surplus as done and sends only the rest; giving back
    /// returns the surplus, too.
    surplus: Amounts,
    /// Writes that take tokens and may have been done; after an outage, perhaps they were not even
    /// sent. The permit sends them again under their ids, so they take effect once.
    to_repeat: Vec<CorrectionWrite>,
}

/// One write to the bucket.
#[derive(Debug)]
pub(super) struct CorrectionWrite {
    pub(super) id: RequestId,
    pub(super) amounts: Amounts,
    /// The surplus of its limits before this write. An adjustment counts it as done: the write
    /// moves only the rest. Giving back includes it, because all that was taken comes back.
    surplus_used: Amounts,
    /// The surplus that its limits will have in case this write succeeds, but the call fails in
    /// another bucket. For an adjustment, this is `surplus_used` plus `amounts`. Say a call adjusts
    /// by 10, and an earlier failed call has left a surplus of 4: this write takes 6, and leaves a
    /// surplus of 10. For giving back, it is empty.
    surplus_left: Amounts,
    /// True if the write may have taken effect already, and the permit sends it again under its id.
    /// A write that also gives back is not sent again if its caller left.
    pub(super) must_repeat: bool,
}

impl CorrectionLog {
    pub(super) const fn new(taken: Amounts) -> Self {
        Self { taken, surplus: Amounts::new(), to_repeat: Vec::new() }
    }

    /// True if nothing is left to give back, and nothing to settle.
    pub(super) fn has_nothing_left(&self) -> bool {
        let mut amounts = self.taken.values().chain(self.surplus.values());
        amounts.all(|amount| *amount == Millitokens::ZERO) && self.to_repeat.is_empty()
    }

    /// The tokens taken of a limit, its surplus included.
    pub(super) fn taken(&self, limit: &LimitName) -> Millitokens {
        self.taken.of(limit)
    }

    /// The tokens taken of a limit, by the acquire and by the corrections that succeeded.
    pub(super) fn consumed(&self, limit: &LimitName) -> Millitokens {
        let surplus = i128::from(self.surplus.of(limit));
        Millitokens::saturating(i128::from(self.taken.of(limit)) - surplus)
    }

    /// Removes and returns a write to be repeated, of an earlier call on the same limits. It must
    /// be settled before this change is made.
    pub(super) fn take_to_repeat(
        &mut self,
        change: CorrectionChange<'_>,
    ) -> Option<CorrectionWrite> {
        let concerns = |write: &CorrectionWrite| match change {
            CorrectionChange::Adjust(by) => {
                by.keys().any(|limit| write.amounts.contains_key(limit))
            }
            CorrectionChange::GiveBack => true,
        };
        let at = self.to_repeat.iter().position(concerns)?;
        let write = self.to_repeat.remove(at);
        self.note_start(&write);
        Some(write)
    }

    /// The write that makes the change in this bucket.
    pub(super) fn start(&mut self, change: CorrectionChange<'_>) -> CorrectionWrite {
        let (amounts, surplus_used, surplus_left) = match change {
            CorrectionChange::Adjust(by) => {
                let of = |limit: &LimitName| (limit.clone(), self.surplus.of(limit));
                let surplus: Amounts = by.keys().map(of).collect();
                let mut missing = by.clone();
                missing -= &surplus;
                let mut surplus_left = surplus.clone();
                surplus_left += &missing;
                (missing, surplus, surplus_left)
            }
            CorrectionChange::GiveBack => (-&self.taken, self.surplus.clone(), Amounts::new()),
        };
        let is_nonzero = |(_, amount): &(LimitName, Millitokens)| *amount != Millitokens::ZERO;
        let amounts = amounts.into_iter().filter(is_nonzero).collect();
        let (id, must_repeat) = (new_id(), false);
        let write = CorrectionWrite { id, amounts, surplus_used, surplus_left, must_repeat };
        self.note_start(&write);
        write
    }

    /// Notes a write that is about to be sent.
    fn note_start(&mut self, write: &CorrectionWrite) {
        self.taken += &owned(write.amounts.iter().filter(is_decrease));
        self.surplus -= &write.surplus_used;
    }

    /// Notes the result of a write; `None`: its caller stopped waiting. Returns the surplus that
    /// the write leaves in the bucket if the call fails as a whole.
    fn note_result(
        &mut self,
        mut write: CorrectionWrite,
        result: Option<&Result<Adjusted, AdjustError>>,
    ) -> Amounts {
        let takes = write.amounts.iter().any(|change| !is_decrease(&change));
        let only_takes = takes && !write.amounts.iter().any(|change| is_decrease(&change));
        write.must_repeat = match result {
            // Nothing was given back: else the error is `Ambiguous`. Tokens may have been taken.
            // The write is sent again under its id, so it takes them once.
            Some(Err(AdjustError::Unavailable(_))) => write.must_repeat || takes,
            // A write that gives back may have done so now, even if it was in doubt before this
            // attempt. It must not be sent again.
            None => only_takes,
            Some(_) => write.must_repeat,
        };
        match result {
            Some(Ok(adjusted)) => return self.done(write, &adjusted.dropped),
            // The write counts as made, even if an earlier call left it in doubt.
            Some(Err(AdjustError::Ambiguous(_))) => return self.done(write, &[]),
            _ if write.must_repeat => {
                self.undo(&write);
                self.to_repeat.push(write);
            }
            // The caller stopped waiting, so the call failed as a whole, and nothing tells if the
            // write was made. Its refunds count as made: they leave a surplus (`surplus_left`). Its
            // debits count as not made: the surplus that they used (`surplus_used`) is there again.
            None => {
                let not_taken = owned(write.surplus_used.iter().filter(|(limit, _)| {
                    write.amounts.get(*limit).is_some_and(|by| *by > Millitokens::ZERO)
                }));
                self.surplus += &not_taken;
                let mut left = write.surplus_left;
                left.retain(|limit, _| {
                    write.amounts.get(limit).is_none_or(|by| *by <= Millitokens::ZERO)
                });
                return left;
            }
            Some(Err(_)) => self.undo(&write),
        }
        Amounts::new()
    }

    fn done(&mut self, write: CorrectionWrite, dropped: &[LimitName]) -> Amounts {
        let is_dropped = |(limit, _): &(&LimitName, &Millitokens)| dropped.contains(limit);
        let (gone, there): (Vec<_>, Vec<_>) = write.amounts.iter().partition(is_dropped);
        self.taken -= &owned(gone.into_iter().filter(is_decrease));
        self.taken += &owned(there.into_iter().filter(|change| !is_decrease(change)));
        owned(write.surplus_left.iter().filter(|change| !is_dropped(change)))
    }

    fn undo(&mut self, write: &CorrectionWrite) {
        self.taken -= &owned(write.amounts.iter().filter(is_decrease));
        self.surplus += &write.surplus_used;
    }
}

/// A write of a call, until the call ends or its caller stops waiting.
#[derive(Debug)]
pub(super) struct WriteInFlight<'a> {
    logs: &'a Mutex<Vec<CorrectionLog>>,
    index: usize,
    /// The write while it is in flight.
    write: Option<CorrectionWrite>,
    /// The surplus that the write leaves in its bucket if the call fails as a whole.
    surplus: Amounts,
}

impl<'a> WriteInFlight<'a> {
    pub(super) const fn new(
        logs: &'a Mutex<Vec<CorrectionLog>>,
        index: usize,
        write: CorrectionWrite,
    ) -> Self {
        Self { logs, index, write: Some(write), surplus: Amounts::new() }
    }

    /// The write to be sent, if there is one.
    pub(super) fn write(&self) -> Option<&CorrectionWrite> {
        self.write.as_ref().filter(|write| !write.amounts.is_empty())
    }

    pub(super) fn note_result(&mut self, result: Option<&Result<Adjusted, AdjustError>>) {
        if let Some(write) = self.write.take() {
            self.surplus = lock(self.logs)[self.index].note_result(write, result);
        }
    }

    /// Removes the amounts of a change from the surplus that the write leaves: the call reached all
    /// its buckets, so its change is no surplus. (`surplus_left` of an adjustment is the change
    /// itself, less dropped limits, so none remains.)
    pub(super) fn forget_surplus_of(&mut self, change: CorrectionChange<'_>) {
        if let CorrectionChange::Adjust(by) = change {
            let is_there =
                |(limit, _): &(&LimitName, &Millitokens)| self.surplus.contains_key(*limit);
            let reached = owned(by.iter().filter(is_there));
            self.surplus -= &reached;
        }
    }
}

impl Drop for WriteInFlight<'_> {
    fn drop(&mut self) {
        self.note_result(None);
        lock(self.logs)[self.index].surplus += &self.surplus;
    }
}

fn is_decrease((_, by): &(&LimitName, &Millitokens)) -> bool {
    **by < Millitokens::ZERO
}

fn owned<'a>(amounts: impl Iterator<Item = (&'a LimitName, &'a Millitokens)>) -> Amounts {
    amounts.map(|(limit, by)| (limit.clone(), *by)).collect()
}
