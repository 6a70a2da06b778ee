//! The table: one item, every write checked as it lands.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_core::{
    Change, CompositeBucket, LimitName, LimitStatus, RequestId, Wait, WritePlan,
};

use super::exact::{AHEAD_MS, Exact, Timing, Violation};
use super::fixtures::{T0, at};
use super::scenario::{Flight, Purpose, Request};

/// The item and what is true of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Table {
    /// The true time, in epoch milliseconds.
    pub(crate) now_ms: i64,
    pub(crate) item: Option<CompositeBucket>,
    exact: BTreeMap<LimitName, Exact>,
    /// The requests of the last writes of this item, whatever it remembers itself.
    recent: Vec<Vec<RequestId>>,
    /// Every request that took effect.
    landed: BTreeSet<RequestId>,
    /// Lost writes that a later one kept from happening, for as long as the item remembers them.
    fenced_off: BTreeSet<RequestId>,
    /// True if a correction landed after its writer had given up, so that nobody has seen the debt
    /// and moved the expiry.
    pub(crate) unwatched: bool,
    /// Requests that took effect twice after four others had pushed them out of the item's memory.
    pub(crate) ambiguous: u32,
    /// The tokens of acquires, less those given back and those that their callers hold.
    owed: BTreeMap<LimitName, i128>,
    /// True if an item or a limit went, and its debt with it.
    has_dropped: bool,
}

impl Table {
    /// The table at the start of a run.
    pub(crate) fn holding(item: Option<CompositeBucket>, timing: Timing) -> Self {
        let buckets = item.iter().flat_map(|item| {
            item.limits.iter().map(|(limit, bucket)| {
                (limit.clone(), Exact::holding(bucket, item.refilled_at, timing))
            })
        });
        Self {
            now_ms: T0,
            exact: buckets.collect(),
            item,
            recent: Vec::new(),
            landed: BTreeSet::new(),
            fenced_off: BTreeSet::new(),
            unwatched: false,
            ambiguous: 0,
            owed: BTreeMap::new(),
            has_dropped: false,
        }
    }

    /// Lets a write happen; false when a condition of it does not hold.
    pub(crate) fn write(&mut self, flight: &Flight, timing: Timing) -> Result<bool, Violation> {
        if !flight.plan.holds(self.item.as_ref()) {
            return Ok(false);
        }
        let after = flight.plan.apply(self.item.as_ref()).ok_or(Violation::Stump)?;
        self.advance();
        self.remember(flight)?;
        self.pull_back(&after, timing)?;
        self.follow(&after, timing);
        self.consume(flight, &after, timing)?;
        self.item = Some(after);
        self.check()?;
        Ok(true)
    }

    /// Books what a write consumed: what its requests asked, and what it gave back.
    fn consume(
        &mut self,
        flight: &Flight,
        after: &CompositeBucket,
        timing: Timing,
    ) -> Result<(), Violation> {
        for (limit, bucket) in &after.limits {
            let asked = |request: &Request| {
                i128::from(request.amounts.get(limit).map_or(0, |amount| amount.get()))
            };
            // Corrections of limits that the process did not find are dropped.
            let Some(counted) = counted(&flight.plan, limit) else { continue };
            let asks = flight.requests.iter().map(asked).sum::<i128>();
            let given_back = i64::try_from(asks - counted).unwrap();
            *self.owed.entry(limit.clone()).or_default() -= i128::from(given_back);
            let exact = self.exact.get_mut(limit).ok_or(Violation::Stump)?;
            // It comes first.
            if given_back != 0 {
                exact.take(-given_back, timing);
                exact.advance(at(self.now_ms));
            }
            // Debits may leave less than nothing, but not what acquires found.
            let mut debits = 0;
            for request in &flight.requests {
                let Some(amount) = request.amounts.get(limit).map(|amount| amount.get()) else {
                    continue;
                };
                match flight.purpose {
                    Purpose::Forced if amount > 0 => exact.force(amount),
                    _ => exact.take(amount, timing),
                }
                exact.advance(at(self.now_ms));
                if request.purpose != Purpose::Acquire {
                    debits += amount.max(0);
                    continue;
                }
                *self.owed.entry(limit.clone()).or_default() += i128::from(amount);
                exact.check_admitted(timing)?;
            }
            let has_acquires = flight.requests.iter().any(|request| {
                request.purpose == Purpose::Acquire && request.amounts.contains_key(limit)
            });
            if has_acquires && bucket.tokens.get() + debits < 0 {
                return Err(Violation::Negative);
            }
        }
        let is_there = |limit: &LimitName| after.limits.contains_key(limit);
        let acquires = flight.requests.iter().filter(|request| request.purpose == Purpose::Acquire);
        if acquires.flat_map(|request| request.amounts.keys()).all(is_there) {
            Ok(())
        } else {
            Err(Violation::Stump)
        }
    }

    /// A caller has what its request took, or corrected it.
    pub(crate) fn held(&mut self, request: &Request) {
        if request.purpose != Purpose::Acquire {
            return;
        }
        for (limit, amount) in &request.amounts {
            *self.owed.entry(limit.clone()).or_default() -= i128::from(amount.get());
        }
    }

    /// Processes end: what they owe is lost.
    pub(crate) fn forget_held(&mut self) {
        self.has_dropped = true;
    }

    /// Nothing is taken that nobody holds, once everything is settled.
    pub(crate) fn check_settled(&self) -> Result<(), Violation> {
        let is_owed = self.owed.values().any(|owed| *owed != 0);
        if self.ambiguous == 0 && !self.has_dropped && is_owed {
            Err(Violation::Unreturned)
        } else {
            Ok(())
        }
    }

    /// Lets a write happen that consumes nothing for anybody.
    pub(crate) fn maintain(&mut self, plan: &WritePlan) {
        if let Some(after) = plan.apply(self.item.as_ref()) {
            self.item = Some(after);
        }
    }

    fn remember(&mut self, flight: &Flight) -> Result<(), Violation> {
        if flight.purpose == Purpose::Repair {
            return Ok(());
        }
        let ids = flight.requests.iter().map(|request| &request.id);
        if self.recent.iter().flatten().any(|recent| ids.clone().any(|id| id == recent)) {
            return Err(Violation::DoubleApplied);
        }
        for id in ids.clone() {
            if !self.landed.insert(id.clone()) {
                self.ambiguous += 1;
            }
        }
        // It comes so late that four other writes made the item forget its fence.
        self.ambiguous += u32::from(self.fenced_off.contains(&flight.id));
        // The fences of a write take places of the item's memory, too.
        let remembered = flight.plan.changes.iter().filter_map(|change| match change {
            Change::Remember(id) => Some(id),
            _ => None,
        });
        let places = remembered.clone().count().max(1);
        self.fenced_off.extend(remembered.filter(|id| **id != flight.id).cloned());
        // A request that was in a lost write before is kept from coming twice by the fence alone.
        self.recent.insert(0, ids.cloned().collect());
        (1..places).for_each(|_| self.recent.insert(0, Vec::new()));
        self.recent.truncate(RequestId::REMEMBERED);
        Ok(())
    }

    /// Allows for a timestamp that goes back, if it may.
    fn pull_back(&mut self, after: &CompositeBucket, timing: Timing) -> Result<(), Violation> {
        let before_ms = self.item.as_ref().map_or(0, |item| item.refilled_at.get());
        let back_ms = before_ms - after.refilled_at.get();
        if (1..=AHEAD_MS).contains(&back_ms) {
            return Err(Violation::WentBack);
        }
        if back_ms > AHEAD_MS {
            self.exact.values_mut().for_each(|exact| exact.pull_back(timing));
        }
        Ok(())
    }

    /// Brings the exact buckets to the limits that the item has now.
    fn follow(&mut self, after: &CompositeBucket, timing: Timing) {
        self.has_dropped |= self.exact.keys().any(|limit| !after.limits.contains_key(limit));
        self.exact.retain(|limit, _| after.limits.contains_key(limit));
        for (limit, bucket) in &after.limits {
            let new = || Exact::full(bucket.rule, at(self.now_ms), timing);
            self.exact.entry(limit.clone()).or_insert_with(new).follow(bucket.rule, timing);
        }
    }

    fn advance(&mut self) {
        for exact in self.exact.values_mut() {
            exact.advance(at(self.now_ms));
        }
    }

    /// The item is what the exact buckets say.
    pub(crate) fn check(&mut self) -> Result<(), Violation> {
        self.advance();
        let Some(item) = &self.item else { return Ok(()) };
        self.exact
            .iter()
            .try_for_each(|(limit, exact)| exact.check(&item.limits[limit], item.refilled_at))
    }

    /// A request was granted because the item remembers it.
    pub(crate) fn confirm(&self, id: &RequestId) -> Result<(), Violation> {
        if self.landed.contains(id) { Ok(()) } else { Err(Violation::Phantom) }
    }

    /// A request was refused from an image that the store has just returned.
    pub(crate) fn refuse(&mut self, limits: &[LimitStatus]) -> Result<(), Violation> {
        self.advance();
        let covers = |status: &LimitStatus| {
            let exact = self.exact.get(&status.limit);
            status.wait != Wait::ExceedsBurst
                && exact.is_none_or(|exact| exact.covers(status.asked.get(), status.rule))
        };
        if limits.iter().all(covers) { Err(Violation::FalseRefusal) } else { Ok(()) }
    }

    /// True if DynamoDB may delete the item.
    pub(crate) fn is_expired(&self) -> bool {
        let expires_at_s = self.item.as_ref().and_then(|item| item.expires_at_s);
        expires_at_s.is_some_and(|expires_at_s| self.now_ms > expires_at_s * 1_000)
    }

    /// Deletes the expired item.
    pub(crate) fn delete(&mut self) -> Result<(), Violation> {
        self.advance();
        let full = std::mem::take(&mut self.unwatched) || self.exact.values().all(Exact::is_full);
        self.item = None;
        self.has_dropped = true;
        self.exact.clear();
        self.recent.clear();
        if full { Ok(()) } else { Err(Violation::Forgiven) }
    }
}

/// The addition of a plan to the counter of a limit; `None`: the plan does not name it.
fn counted(plan: &WritePlan, limit: &LimitName) -> Option<i128> {
    plan.changes.iter().find_map(|change| match change {
        Change::Put(item) => item.limits.get(limit).map(|bucket| bucket.consumed.get()),
        Change::Add { limit: of, consumed, .. } if of == limit => Some(i128::from(*consumed)),
        Change::Seed(of, bucket) if of == limit => Some(bucket.consumed.get()),
        _ => None,
    })
}
