//! The plan of one write: the amounts to lease and to settle, and how the ledger changes when the
//! write succeeds or fails.

use std::collections::BTreeMap;

use sluicegate_core::{LeaseRange, LimitName, Millitokens};

use super::atomic_bucket::{Demand, POOL_MAX};
use super::bucket_ledger::BucketLedger;
use super::lease_plan::{LeasePlan, Withdrawn};
use super::leased_bucket::{COARSE_MS, LeasedBucket};
use super::leaser::WriteKind;
use super::limit_ledger::{LimitLedger, signed, unsigned};
use super::moment::Moment;
use super::settings::LeaseSettings;
use super::times::Times;
use crate::leasing_store::LeaseOutcome;

/// Expected use raises a lease to at most 8 times the last lease, or 8 times two requests: one
/// observation proves little.
const GROWTH: u64 = 8;

impl LeasedBucket {
    /// Plans a write: the tokens to lease for the request and the next ones, and what to settle.
    /// Takes the tokens that the write returns out of the pools. If `settles_deleted` is false, the
    /// ledger keeps what there is to settle of deleted limits.
    pub(super) fn plan(
        &self,
        ledger: &mut BucketLedger,
        need: &[Demand],
        (kind, settles_deleted): (WriteKind, bool),
        settings: &LeaseSettings,
        times: Times,
    ) -> LeasePlan {
        let is_due = self.atomic.is_due(times.now);
        self.catch_up(ledger, times);
        let mut plan = LeasePlan { asked_at: times, ..LeasePlan::default() };
        let horizon = settings.max_age_ms() / 2 * 3;
        let configuration = ledger.configuration.clone();
        let (limit_ledgers, waiters) = ledger.ledgers_and_waiters();
        for (index, limit_ledger) in limit_ledgers.iter_mut().enumerate() {
            let (limit, pool) = (&self.layout.limits[index], &self.atomic.slots[index].pool);
            let is_deleted = configuration.is_deleted(limit);
            let (mut keep, mut target, asked) = (0, 0, asked_of(need, index));
            if kind == WriteKind::Renew {
                limit_ledger.note_request(asked);
                let expected = limit_ledger.expect(times.now, horizon);
                let waited_for = waiters.map_or(0, |waiters| waiters.demand_of(index));
                let waited_for = waited_for.min(largest(limit_ledger, settings));
                target = size(limit_ledger, expected, settings).max(waited_for);
                // The tokens of the request come with the lease. Those that the pool has for it,
                // while it lacks tokens of another limit, go back in the same write: the store may
                // have no others.
                let spare = pool.tokens().saturating_sub(asked);
                // If the tokens end soon, keep those for the time until the new lease arrives.
                let soon = || limit_ledger.expected(2 * times.renew_ms);
                keep =
                    if is_due { spare.min(soon() + limit_ledger.largest_request()) } else { spare };
            }
            // The next write may remove the limit.
            if is_deleted {
                keep = 0;
            }
            if keep < pool.tokens() {
                // The planned write returns them.
                let (milli, until_ms) = limit_ledger.withdraw(pool, keep);
                let withdrawn = until_ms.map(|until_ms| Withdrawn { slot: index, milli, until_ms });
                plan.withdrawn.extend(withdrawn);
                limit_ledger.retired += milli;
            }
            let extra = target.saturating_sub(pool.tokens());
            if asked + extra > 0 {
                let (least, most) = (amount(asked), amount(asked + extra));
                plan.wanted.insert(limit.clone(), LeaseRange { least, most });
            }
            if settles_deleted || !is_deleted {
                self.settle_into(&mut plan, index, limit_ledger);
            }
        }
        self.set_marks(ledger, times);
        plan
    }

    /// Ranges that lease the needed amounts, and no more.
    pub(super) fn exact_ranges(&self, need: &[Demand]) -> BTreeMap<LimitName, LeaseRange> {
        let range = |demand: &Demand| {
            let (limit, amount) =
                (&self.layout.limits[usize::from(demand.slot)], amount(demand.milli));
            (limit.clone(), LeaseRange { least: amount, most: amount })
        };
        need.iter().map(range).collect()
    }

    fn settle_into(&self, plan: &mut LeasePlan, index: usize, limit_ledger: &mut LimitLedger) {
        let limit = &self.layout.limits[index];
        let retired = std::mem::take(&mut limit_ledger.retired);
        if retired > 0 {
            plan.returned.insert(limit.clone(), amount(retired));
        }
        let used = std::mem::take(&mut limit_ledger.used);
        if used != 0 {
            plan.used.insert(limit.clone(), Millitokens::saturating(used.into()));
        }
    }

    /// Takes in a lease: hands out the needed tokens and puts the rest into the pools.
    pub(super) fn conclude(
        &self,
        ledger: &mut BucketLedger,
        plan: &LeasePlan,
        need: &[Demand],
        outcome: &LeaseOutcome,
        times: Times,
    ) {
        ledger.start_unreported_age(times.now);
        let until_ms = times.until_ms(&plan.asked_at, plan.asked_at.new_until_ms());
        if !need.is_empty() {
            ledger.used_at = Moment::of(times.now);
        }
        for (index, limit_ledger) in ledger.limit_ledgers.iter_mut().enumerate() {
            let leased = outcome.leased.of(&self.layout.limits[index]).get();
            let asked = asked_of(need, index);
            let rest = unsigned(leased).saturating_sub(asked);
            limit_ledger.hand_out(asked);
            if leased > 0 {
                limit_ledger.set_last_lease(unsigned(leased));
                self.put(limit_ledger, index, rest, until_ms);
            }
        }
        self.set_marks(ledger, times);
    }

    fn put(&self, limit_ledger: &mut LimitLedger, index: usize, milli: u64, until_ms: i64) {
        self.atomic.end_by(until_ms.saturating_sub(COARSE_MS));
        if self.atomic.slots[index].pool.put(milli) {
            limit_ledger.note_lease(milli, until_ms);
        } else {
            limit_ledger.retired += milli;
        }
    }

    /// Restores the ledger after a write that failed.
    pub(super) fn undo(&self, ledger: &mut BucketLedger, plan: &LeasePlan, times: Times) {
        ledger.start_unreported_age(times.now);
        for (limit, limit_ledger) in self.layout.limits.iter().zip(&mut ledger.limit_ledgers) {
            limit_ledger.retired += unsigned(plan.returned.of(limit).get());
            limit_ledger.used += plan.used.of(limit).get();
        }
        for Withdrawn { slot, milli, until_ms } in plan.withdrawn.iter().copied() {
            let limit_ledger = &mut ledger.limit_ledgers[slot];
            limit_ledger.retired -= milli;
            let until_ms = times.until_ms(&plan.asked_at, until_ms);
            self.put(limit_ledger, slot, milli, until_ms);
        }
        self.catch_up(ledger, times);
    }
}

/// The target size of a pool.
fn size(limit_ledger: &LimitLedger, expected: u64, settings: &LeaseSettings) -> u64 {
    if expected == 0 {
        return 0;
    }
    let (request, last) = (limit_ledger.largest_request(), limit_ledger.last_lease());
    let grown = expected.min((last.max(2 * request)).saturating_mul(GROWTH));
    let least = request.saturating_mul(settings.min_requests.into());
    grown.max(least).min(largest(limit_ledger, settings))
}

/// The largest lease.
fn largest(limit_ledger: &LimitLedger, settings: &LeaseSettings) -> u64 {
    limit_ledger.largest_request().saturating_mul(settings.max_requests.into()).min(POOL_MAX / 4)
}

/// The amount that is needed of a limit.
fn asked_of(need: &[Demand], slot: usize) -> u64 {
    let asked = need.iter().find(|demand| usize::from(demand.slot) == slot);
    asked.map_or(0, |demand| demand.milli)
}

fn amount(milli: u64) -> Millitokens {
    Millitokens::saturating(signed(milli).into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const MAX_AGE_MS: i64 = 1_000;
    const HOUR_MS: i64 = 3_600_000;

    /// Tokens left in a pool of five. They are leased at 0 and taken out at `planned`, by a write
    /// that is undone at `undone`.
    fn left_after_undo(planned: Times, undone: Times) -> u64 {
        let bucket = LeasedBucket::of("u", &["rps"]);
        let mut ledger = BucketLedger::new(1, Arc::default(), 0);
        bucket.put(&mut ledger.limit_ledgers[0], 0, 5_000, MAX_AGE_MS);
        let need = [Demand { slot: 0, milli: 7_000 }];
        let (kind, settings) = ((WriteKind::Renew, true), LeaseSettings::default());
        let plan = bucket.plan(&mut ledger, &need, kind, &settings, planned);
        assert_eq!(bucket.atomic.slots[0].pool.tokens(), 0);
        bucket.undo(&mut ledger, &plan, undone);
        bucket.atomic.slots[0].pool.tokens()
    }

    #[test]
    fn unsettled_use_is_no_younger_after_the_clock_was_set_back() {
        let at =
            |now, set_backs| Times { now, set_backs, max_age_ms: MAX_AGE_MS, ..Times::default() };
        assert_eq!(left_after_undo(at(100, 0), at(200, 0)), 5_000);
        assert_eq!(left_after_undo(at(100, 0), at(200 - HOUR_MS, 1)), 0, "while it was in flight");
        let unseen = [100, 200].map(|ms| at(ms - HOUR_MS, 1));
        assert_eq!(left_after_undo(unseen[0], unseen[1]), 0, "no reading noticed it");
    }
}
