//! The table: one item, every write checked as it lands.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_core::{CompositeBucket, LimitName, RequestId, Standing, Wait, WritePlan};

use super::call::{Flight, Purpose};
use super::exact::{AHEAD_MS, Exact, Timing, Violation};
use super::fixtures::{T0, at};

/// The item and what is true of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Table {
    /// The true time, in epoch milliseconds.
    pub(crate) now_ms: i64,
    pub(crate) item: Option<CompositeBucket>,
    exact: BTreeMap<LimitName, Exact>,
    /// The last requests that took effect on this item, whatever it remembers itself.
    recent: Vec<RequestId>,
    /// Every request that took effect.
    landed: BTreeSet<RequestId>,
    /// Whether a correction landed after its writer had given up, so that nobody has seen the debt
    /// and moved the expiry.
    pub(crate) unwatched: bool,
    /// Requests that took effect twice after four others had pushed them out of the item's memory.
    pub(crate) ambiguous: u32,
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
            unwatched: false,
            ambiguous: 0,
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
        for (limit, amount) in &flight.amounts {
            let exact = self.exact.get_mut(limit).ok_or(Violation::Stump)?;
            match flight.purpose {
                Purpose::Forced if amount.get() > 0 => exact.force(amount.get()),
                _ => exact.take(amount.get(), timing),
            }
            if flight.purpose == Purpose::Acquire {
                if after.limits[limit].tokens.get() < 0 {
                    return Err(Violation::Negative);
                }
                exact.check_admitted(timing)?;
            }
        }
        self.item = Some(after);
        self.check()?;
        Ok(true)
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
        if self.recent.contains(&flight.id) {
            return Err(Violation::DoubleApplied);
        }
        if !self.landed.insert(flight.id.clone()) {
            self.ambiguous += 1;
        }
        self.recent.insert(0, flight.id.clone());
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
    pub(crate) fn refuse(&mut self, standings: &[Standing]) -> Result<(), Violation> {
        self.advance();
        let covers = |standing: &Standing| {
            let exact = self.exact.get(&standing.limit);
            standing.wait != Wait::ExceedsBurst
                && exact.is_none_or(|exact| exact.covers(standing.asked.get()))
        };
        if standings.iter().all(covers) { Err(Violation::FalseRefusal) } else { Ok(()) }
    }

    /// Whether DynamoDB may delete the item.
    pub(crate) fn is_expired(&self) -> bool {
        let expires_at_s = self.item.as_ref().and_then(|item| item.expires_at_s);
        expires_at_s.is_some_and(|expires_at_s| self.now_ms > expires_at_s * 1_000)
    }

    /// Deletes the expired item.
    pub(crate) fn delete(&mut self) -> Result<(), Violation> {
        self.advance();
        let full = std::mem::take(&mut self.unwatched) || self.exact.values().all(Exact::is_full);
        self.item = None;
        self.exact.clear();
        self.recent.clear();
        if full { Ok(()) } else { Err(Violation::Forgiven) }
    }
}
