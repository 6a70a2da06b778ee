//! The plan of one write: the amounts to lease and to settle, and how the ledger changes when the
//! write succeeds or fails.

use sluicegate_core::{Amounts, LeaseRange, Millitokens};

use super::atomic_bucket::{Demand, POOL_MAX};
use super::bucket_ledger::BucketLedger;
use super::lease_plan::LeasePlan;
use super::leased_bucket::{LeasedBucket, ROUGH_MS};
use super::limit_ledger::{LimitLedger, signed, unsigned};
use super::moment::Moment;
use super::settings::LeaseSettings;
use super::times::Times;
use crate::leasing_store::LeaseOutcome;

/// A lease is at most so many times as large as the one before, or as two requests: one observation
/// proves little.
const GROWTH: u64 = 8;

impl LeasedBucket {
    /// Plans a lease for these requests, and ahead of the next ones.
    pub(super) fn draft(
        &self,
        books: &mut BucketLedger,
        need: &[Demand],
        settings: &LeaseSettings,
        times: Times,
    ) -> LeasePlan {
        let is_due = self.cell.is_due(times.now);
        self.catch_up(books, times);
        let mut draft = LeasePlan { asked: times, ..LeasePlan::default() };
        let horizon = settings.max_age_ms() / 2 * 3;
        let (accounts, waiters) = books.accounts_and_waiters();
        for (index, account) in accounts.iter_mut().enumerate() {
            let (limit, pool) = (&self.kind.limits[index], &self.cell.slots[index].pool);
            let asked = need.iter().find(|ask| usize::from(ask.slot) == index);
            let asked = asked.map_or(0, |ask| ask.milli);
            account.note_asked(asked);
            let expected = account.expect(times.now, horizon);
            let waited_for = waiters.map_or(0, |waiters| waiters.asks_of(index));
            let waited_for = waited_for.min(largest(account, settings));
            let target = size(account, expected, settings).max(waited_for);
            let keep = if pool.tokens() < asked {
                Some(0)
            } else if is_due {
                Some(account.expected(2 * times.lead) + account.unit())
            } else {
                None
            };
            if let Some(keep) = keep {
                let (milli, until_ms) = account.withdraw(pool, keep);
                draft.withdrawn.extend(until_ms.map(|until_ms| (index, milli, until_ms)));
                account.retired += milli;
            }
            let ahead = target.saturating_sub(pool.tokens());
            if asked + ahead > 0 {
                let (least, most) = (amount(asked), amount(asked + ahead));
                draft.wanted.insert(limit.clone(), LeaseRange { least, most });
            }
            self.settle_into(&mut draft, index, account);
        }
        self.tell(books, times);
        draft
    }

    /// Plans to settle everything that is held.
    pub(super) fn closing_draft(&self, books: &mut BucketLedger, times: Times) -> LeasePlan {
        self.catch_up(books, times);
        let mut draft = LeasePlan { asked: times, ..LeasePlan::default() };
        for (index, account) in books.accounts.iter_mut().enumerate() {
            let (milli, until_ms) = account.withdraw(&self.cell.slots[index].pool, 0);
            draft.withdrawn.extend(until_ms.map(|until_ms| (index, milli, until_ms)));
            account.retired += milli;
            self.settle_into(&mut draft, index, account);
        }
        draft
    }

    fn settle_into(&self, draft: &mut LeasePlan, index: usize, account: &mut LimitLedger) {
        let limit = &self.kind.limits[index];
        let retired = std::mem::take(&mut account.retired);
        if retired > 0 {
            draft.returned.insert(limit.clone(), amount(retired));
        }
        let used = std::mem::take(&mut account.used);
        if used != 0 {
            draft.used.insert(limit.clone(), Millitokens::saturating(used.into()));
        }
    }

    /// Takes in a lease: hands out the needed tokens and puts the rest into the pools.
    pub(super) fn conclude(
        &self,
        books: &mut BucketLedger,
        draft: &LeasePlan,
        need: &[Demand],
        done: &LeaseOutcome,
        max_age_ms: i64,
        times: Times,
    ) {
        books.begin_open(times.now);
        let until_ms = draft.asked.now.saturating_add(max_age_ms);
        let until_ms = times.until_ms(&draft.asked, until_ms, max_age_ms);
        if !need.is_empty() {
            books.used_at = Moment::of(times.now);
        }
        for (index, account) in books.accounts.iter_mut().enumerate() {
            let leased = done.leased.get(&self.kind.limits[index]).map_or(0, |milli| milli.get());
            let asked = need.iter().find(|ask| usize::from(ask.slot) == index);
            let asked = asked.map_or(0, |ask| ask.milli);
            let rest = unsigned(leased).saturating_sub(asked);
            account.hand_out(asked);
            if leased > 0 {
                account.set_last(unsigned(leased));
                self.put(account, index, rest, until_ms);
            }
        }
        self.tell(books, times);
    }

    fn put(&self, account: &mut LimitLedger, index: usize, milli: u64, until_ms: i64) {
        self.cell.end_by(until_ms.saturating_sub(ROUGH_MS));
        if self.cell.slots[index].pool.put(milli) {
            account.lease(milli, until_ms);
        } else {
            account.retired += milli;
        }
    }

    /// Restores the ledger after a write that failed.
    pub(super) fn undo(
        &self,
        books: &mut BucketLedger,
        draft: &LeasePlan,
        max_age_ms: i64,
        times: Times,
    ) {
        books.begin_open(times.now);
        for (index, account) in books.accounts.iter_mut().enumerate() {
            let of =
                |amounts: &Amounts| amounts.get(&self.kind.limits[index]).map_or(0, |m| m.get());
            account.retired += unsigned(of(&draft.returned));
            account.used += of(&draft.used);
        }
        for (index, milli, until_ms) in &draft.withdrawn {
            let account = &mut books.accounts[*index];
            account.retired -= milli;
            let until_ms = times.until_ms(&draft.asked, *until_ms, max_age_ms);
            self.put(account, *index, *milli, until_ms);
        }
        self.catch_up(books, times);
    }
}

/// The target size of a pool.
fn size(account: &LimitLedger, expected: u64, settings: &LeaseSettings) -> u64 {
    if expected == 0 {
        return 0;
    }
    let (unit, last) = (account.unit(), account.last());
    let grown = expected.min((last.max(2 * unit)).saturating_mul(GROWTH));
    let least = unit.saturating_mul(settings.min.into());
    grown.max(least).min(largest(account, settings))
}

fn largest(account: &LimitLedger, settings: &LeaseSettings) -> u64 {
    account.unit().saturating_mul(settings.max.into()).min(POOL_MAX / 4)
}

fn amount(milli: u64) -> Millitokens {
    Millitokens::saturating(signed(milli).into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluicegate_core::{EntityId, LimitName, Resource};

    use super::*;
    use crate::leasing::names::Kind;

    const MAX_AGE_MS: i64 = 1_000;
    const HOUR_MS: i64 = 3_600_000;

    /// Tokens left in a pool of five. They are leased at 0 and taken out at `drafted`, by a write
    /// that is undone at `undone`.
    fn left_after_undo(drafted: Times, undone: Times) -> u64 {
        let (resource, limits) =
            (Resource::new("r").unwrap(), vec![LimitName::new("rps").unwrap()]);
        let bucket =
            LeasedBucket::new(EntityId::new("u").unwrap(), Kind { resource, limits }.into());
        let mut books = BucketLedger::new(1, Arc::default(), 0);
        bucket.put(&mut books.accounts[0], 0, 5_000, MAX_AGE_MS);
        let need = [Demand { slot: 0, milli: 7_000 }];
        let draft = bucket.draft(&mut books, &need, &LeaseSettings::default(), drafted);
        assert_eq!(bucket.cell.slots[0].pool.tokens(), 0);
        bucket.undo(&mut books, &draft, MAX_AGE_MS, undone);
        bucket.cell.slots[0].pool.tokens()
    }

    #[test]
    fn what_a_write_did_not_settle_is_no_younger_for_a_clock_that_was_set_back() {
        let at = |now, set_backs| Times { now, set_backs, ..Times::default() };
        assert_eq!(left_after_undo(at(100, 0), at(200, 0)), 5_000);
        assert_eq!(left_after_undo(at(100, 0), at(200 - HOUR_MS, 1)), 0, "while it was in flight");
        let unseen = [100, 200].map(|ms| at(ms - HOUR_MS, 1));
        assert_eq!(left_after_undo(unseen[0], unseen[1]), 0, "no reading noticed it");
    }
}
