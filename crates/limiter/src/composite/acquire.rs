//! Acquiring: decide from what is known, write, and decide again from what a refusal hands over.
//!
//! One bucket, or a child's and its parent's in one transaction: the same loop. It ends with a
//! grant, with "no" said from an image that may say it, or with the reason why it cannot tell.

use std::sync::Arc;

use sluicegate_core::keys::ItemKey;
use sluicegate_core::{
    Acquire, BucketId, Decision, EpochMillis, Presume, RequestId, Wait, WritePath, WritePlan,
    decide, standings,
};
use tokio::sync::SemaphorePermit;

use super::CompositeStore;
use super::images::Entry;
use super::run::Run;
use super::side::Side;
use crate::error::{AcquireError, InvalidRequest, LimitExceeded, LimitStatus, NeverAdmissible};
use crate::store::Part;
use crate::table::{Consistency, Table};

/// What the sides of a request come to.
enum Step {
    Granted(WritePath),
    Write(Vec<WritePlan>),
    /// Puts one side's clock right; then decide again.
    Repair(usize, WritePlan),
    /// These sides look short.
    Short,
    Unknown(InvalidRequest),
}

/// A transaction whose answer was lost: the same again, under the same token, is done once.
pub(super) struct Pending {
    pub(super) writes: [(BucketId, WritePlan); 2],
    pub(super) token: String,
}

/// An acquire under way.
pub(super) struct Acquiring<'s, 'r, 'c, T> {
    pub(super) store: &'s CompositeStore<T>,
    pub(super) run: &'r mut Run<'c>,
    pub(super) sides: Vec<Side>,
    /// The ids that the item remembered before a write whose answer was lost.
    pub(super) doubt: Option<Vec<RequestId>>,
    pub(super) pending: Option<Pending>,
    refreshed_configuration: bool,
}

impl<'s, 'r, 'c, T: Table> Acquiring<'s, 'r, 'c, T> {
    pub(super) fn new(
        store: &'s CompositeStore<T>,
        run: &'r mut Run<'c>,
        sides: Vec<Side>,
    ) -> Self {
        Self { store, run, sides, doubt: None, pending: None, refreshed_configuration: false }
    }

    /// Runs to its end: the parts that were taken, and by which path.
    pub(super) async fn finish(mut self) -> Result<(Vec<Part>, WritePath), AcquireError> {
        let entries: Vec<_> = self.sides.iter().map(|side| side.entry.clone()).collect();
        let mut permits: Vec<Option<SemaphorePermit<'_>>> = entries.iter().map(|_| None).collect();
        self.read_first().await?;
        loop {
            let now = self.run.now();
            let presumed: Vec<_> = self
                .sides
                .iter()
                .zip(&permits)
                .map(|(side, permit)| self.presume(side, permit.is_some(), now))
                .collect();
            match self.step(&presumed, now) {
                Step::Granted(path) => return Ok((self.parts(), path)),
                Step::Unknown(unknown) => self.look_again(unknown).await?,
                Step::Short => {
                    if let Some(refusal) = self.refusal(now) {
                        return Err(refusal);
                    }
                    permits.iter_mut().for_each(|permit| *permit = None);
                    self.refresh().await?;
                }
                Step::Repair(index, plan) => self.repair(index, &plan, now).await?,
                Step::Write(plans) => {
                    if self.claim(&entries, &mut permits, &plans).await {
                        continue;
                    }
                    if let Some(path) = self.write(&plans, now).await? {
                        return Ok((self.parts(), path));
                    }
                    permits.iter_mut().for_each(|permit| *permit = None);
                }
            }
        }
    }

    /// How all limits of its buckets stand, by a read that sees every write.
    pub(super) async fn look(mut self) -> Result<Vec<LimitStatus>, AcquireError> {
        self.refresh().await?;
        let now = self.run.now();
        let of_side = |side: &Side| {
            let image = side.image().map(AsRef::as_ref);
            let limits = standings(image, &side.amounts, &side.configuration, now);
            let entity = side.bucket.entity.clone();
            limits.into_iter().map(move |standing| LimitStatus::new(&entity, standing))
        };
        Ok(self.sides.iter().flat_map(of_side).collect())
    }

    fn parts(&self) -> Vec<Part> {
        let now = self.run.now();
        for side in &self.sides {
            if side.image().is_some_and(|image| side.configuration.is_older_than(image)) {
                self.store.directory.forget_older(&side.bucket, now);
            }
        }
        self.sides.iter().map(Side::part).collect()
    }

    /// What to take for granted about a bucket.
    fn presume(&self, side: &Side, holds_claim: bool, now: EpochMillis) -> Presume {
        let Some(image) = side.image() else { return Presume::Unchanged };
        let interval = i64::from(self.store.settings.claim_interval.0);
        let age = now.get() - image.refilled_at.get();
        if age > interval {
            let rivals = side.entry.rivals.claimed_lately();
            return if rivals && !side.is_fresh {
                Presume::ClaimedSince
            } else {
                Presume::Unchanged
            };
        }
        // Ahead of need, when nobody else does it: those behind then need not wait.
        let is_due = age * 2 > interval && !side.entry.rivals.claimed_lately();
        let is_free = holds_claim || side.entry.claims.available_permits() > 0;
        if is_due && is_free { Presume::ClaimDue } else { Presume::Unchanged }
    }

    fn step(&self, presumed: &[Presume], now: EpochMillis) -> Step {
        if let Some(pending) = &self.pending {
            return Step::Write(pending.writes.iter().map(|(_, plan)| plan.clone()).collect());
        }
        let mut plans = Vec::with_capacity(self.sides.len());
        let mut is_short = false;
        for (index, (side, presume)) in self.sides.iter().zip(presumed).enumerate() {
            let acquire = Acquire {
                bucket: &side.bucket,
                amounts: &side.amounts,
                configuration: &side.configuration,
                id: &self.run.id,
                interval: self.store.settings.claim_interval,
                presume: *presume,
            };
            match decide(side.image().map(AsRef::as_ref), acquire, now) {
                Decision::Write(plan) => plans.push(plan),
                Decision::Repair(plan) => return Step::Repair(index, plan),
                // All sides are written at once, under one id.
                Decision::Landed => return Step::Granted(WritePath::Retry),
                Decision::Short(_) => is_short = true,
                Decision::Unknown(limit) => {
                    return Step::Unknown(InvalidRequest::UnknownLimit(limit));
                }
            }
        }
        if is_short { Step::Short } else { Step::Write(plans) }
    }

    /// Reads what nobody knows yet, and what other processes are known to have moved on: half a
    /// read is cheaper than a write that fails.
    async fn read_first(&mut self) -> Result<(), AcquireError> {
        let now = self.run.now();
        let interval = i64::from(self.store.settings.claim_interval.0);
        let is_wanted = |side: &Side| match (&side.known, side.image()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(_), Some(image)) => {
                let is_stale = now.get() - image.refilled_at.get() > interval;
                let rivals = &side.entry.rivals;
                is_stale && rivals.moves() && !rivals.claimed_lately() && !side.is_fresh
            }
        };
        let wanted: Vec<_> =
            (0..self.sides.len()).filter(|index| is_wanted(&self.sides[*index])).collect();
        if wanted.is_empty() { Ok(()) } else { self.read(&wanted).await }
    }

    /// Reads the short sides whose image is too old to say "no" from.
    async fn refresh(&mut self) -> Result<(), AcquireError> {
        let stale: Vec<_> =
            (0..self.sides.len()).filter(|index| !self.sides[*index].is_fresh).collect();
        self.read(&stale).await
    }

    async fn read(&mut self, wanted: &[usize]) -> Result<(), AcquireError> {
        let key = |index: &usize| {
            let BucketId { entity, resource } = self.sides[*index].bucket.clone();
            ItemKey::Bucket(entity, resource)
        };
        let keys: Vec<_> = wanted.iter().map(key).collect();
        loop {
            let found = self.run.in_time(self.store.table.read(&keys, Consistency::Strong)).await;
            match found {
                Ok(found) => {
                    self.run.read_units += found.read_units;
                    let now = self.run.now();
                    for (index, item) in wanted.iter().zip(found.items) {
                        let side = &mut self.sides[*index];
                        let image = super::image(&side.bucket, item.as_ref())?;
                        if let (Some(stale), Some(found)) = (side.image(), &image) {
                            side.entry.rivals.observe(
                                stale,
                                found,
                                now,
                                self.store.settings.claim_interval,
                            );
                        }
                        side.learn(image, now, true);
                    }
                    return Ok(());
                }
                Err(trouble) => self.wait_out(trouble).await?,
            }
        }
    }

    /// "No", if the image of every short side may say it.
    fn refusal(&self, now: EpochMillis) -> Option<AcquireError> {
        let sides: Vec<_> = self.sides.iter().map(|side| (side, side.standings(now))).collect();
        let may_refuse = |side: &Side| {
            let deny_cache = self.store.settings.deny_cache;
            side.is_fresh
                || side.known.as_ref().is_some_and(|known| known.may_refuse(now, deny_cache))
        };
        let is_short = |limits: &[LimitStatus]| limits.iter().any(LimitStatus::is_violated);
        if sides.iter().any(|(side, limits)| is_short(limits) && !may_refuse(side)) {
            return None;
        }
        let limits: Vec<_> = sides.into_iter().flat_map(|(_, limits)| limits).collect();
        if limits.iter().any(|limit| limit.wait == Wait::ExceedsBurst) {
            return Some(NeverAdmissible { limits }.into());
        }
        Some(LimitExceeded::new(limits).into())
    }

    /// Gets the right to claim where a plan does; true when that took a while and the decision is
    /// to be made again.
    async fn claim<'e>(
        &mut self,
        entries: &'e [Arc<Entry>],
        permits: &mut [Option<SemaphorePermit<'e>>],
        plans: &[WritePlan],
    ) -> bool {
        let is_claim = |plan: &WritePlan| plan.path == WritePath::Normal;
        // Whoever waited and need not claim any more lets the next one look at once.
        for (plan, permit) in plans.iter().zip(permits.iter_mut()) {
            if !is_claim(plan) {
                *permit = None;
            }
        }
        let missing = |permits: &[Option<SemaphorePermit<'_>>]| {
            plans.iter().zip(permits).any(|(plan, permit)| is_claim(plan) && permit.is_none())
        };
        if !missing(permits) {
            return false;
        }
        // Never wait for one claim while holding another, in no particular order: all anew, by name.
        permits.iter_mut().for_each(|permit| *permit = None);
        let mut order: Vec<_> = (0..plans.len()).filter(|index| is_claim(&plans[*index])).collect();
        order.sort_by(|a, b| self.sides[*a].bucket.cmp(&self.sides[*b].bucket));
        let mut waited = false;
        for index in order {
            let claims = &entries[index].claims;
            permits[index] = match claims.try_acquire() {
                Ok(permit) => Some(permit),
                Err(_) => {
                    waited = true;
                    // Closed never; the time of the call ends it elsewhere.
                    tokio::time::timeout_at(self.run.deadline, claims.acquire())
                        .await
                        .ok()
                        .and_then(Result::ok)
                }
            };
        }
        if waited {
            for side in &mut self.sides {
                let newest = side.entry.known();
                side.is_fresh &= newest.as_ref().map(|known| known.as_of)
                    == side.known.as_ref().map(|known| known.as_of);
                side.known = newest.or(side.known.take());
            }
        }
        waited && !self.run.is_over()
    }

    /// A limit that nobody knows may have been stored a moment ago.
    async fn look_again(&mut self, unknown: InvalidRequest) -> Result<(), AcquireError> {
        if std::mem::replace(&mut self.refreshed_configuration, true) {
            return Err(unknown.into());
        }
        for side in &mut self.sides {
            self.store.look_up_again(side, self.run).await?;
        }
        self.refresh().await
    }
}
