//! Acquiring: decide from what is known, write, and decide again from what a refusal hands over.
//!
//! One bucket, or a child's and its parent's in one transaction: the same loop. It ends with a
//! grant, with "no" said from an image that may say it, or with the reason why it cannot tell.

use std::sync::Arc;

use sluicegate_core::keys::ItemKey;
use sluicegate_core::{
    Acquire, Amounts, BucketId, CompositeBucket, Configuration, Decision, EpochMillis, Presume,
    RequestId, Wait, WritePath, WritePlan, decide, is_clock_ahead, standings,
};
use tokio::sync::SemaphorePermit;

use super::CompositeStore;
use super::images::{Entry, Known};
use super::run::Run;
use crate::error::{AcquireError, InvalidRequest, LimitExceeded, LimitStatus, NeverAdmissible};
use crate::store::Part;
use crate::table::{Cancelled, Consistency, Table, TogetherError, Trouble, WriteError};

/// One bucket of a request.
pub(super) struct Side {
    pub(super) bucket: BucketId,
    pub(super) amounts: Amounts,
    pub(super) configuration: Arc<Configuration>,
    pub(super) entry: Arc<Entry>,
    pub(super) known: Option<Known>,
    /// The table said so during this call.
    pub(super) is_fresh: bool,
}

impl Side {
    pub(super) fn image(&self) -> Option<&Arc<CompositeBucket>> {
        self.known.as_ref().and_then(|known| known.image.as_ref())
    }

    /// The image, if it is older than this call. What becomes of a newer one says nothing about how
    /// far to trust an old one, and would be counted twice.
    fn guess(&self) -> Option<&Arc<CompositeBucket>> {
        self.image().filter(|_| !self.is_fresh)
    }

    pub(super) fn learn(
        &mut self,
        image: Option<Arc<CompositeBucket>>,
        now: EpochMillis,
        is_authoritative: bool,
    ) {
        let known = Known { image, as_of: now, is_authoritative };
        self.entry.learn(known.clone());
        self.known = Some(known);
        self.is_fresh = is_authoritative;
    }

    fn standings(&self, now: EpochMillis) -> Vec<LimitStatus> {
        let image = self.image().map(AsRef::as_ref);
        standings(image, &self.amounts, &self.configuration, now)
            .into_iter()
            .filter(|standing| self.amounts.contains_key(&standing.limit))
            .map(|standing| LimitStatus::new(&self.bucket.entity, standing))
            .collect()
    }

    fn part(&self) -> Part {
        Part {
            bucket: self.bucket.clone(),
            amounts: self.amounts.clone(),
            image: self.image().cloned(),
            configuration: self.configuration.clone(),
        }
    }
}

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
struct Pending {
    writes: [(BucketId, WritePlan); 2],
    token: String,
}

/// An acquire under way.
pub(super) struct Acquiring<'s, 'r, 'c, T> {
    pub(super) store: &'s CompositeStore<T>,
    pub(super) run: &'r mut Run<'c>,
    pub(super) sides: Vec<Side>,
    /// The ids that the item remembered before a write whose answer was lost.
    doubt: Option<Vec<RequestId>>,
    pending: Option<Pending>,
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

    /// Sends the plans; the path when they were done.
    async fn write(
        &mut self,
        plans: &[WritePlan],
        now: EpochMillis,
    ) -> Result<Option<WritePath>, AcquireError> {
        if self.run.is_over() {
            return Err(self.give_up());
        }
        self.run.attempts += 1;
        match plans {
            [plan] => self.write_one(plan, now).await,
            plans => self.write_together(plans, now).await,
        }
    }

    async fn write_one(
        &mut self,
        plan: &WritePlan,
        now: EpochMillis,
    ) -> Result<Option<WritePath>, AcquireError> {
        let (store, interval) = (self.store, self.store.settings.claim_interval);
        let written = store.write(self.run, &self.sides[0].bucket, plan).await;
        if written.is_ok() {
            self.note_clock(&self.sides[0], plan, now);
        }
        let side = &mut self.sides[0];
        match written {
            Ok(written) => {
                self.run.write_units += written.write_units;
                if let (Some(before), Some(after)) = (side.guess(), &written.image) {
                    let found = if plan.path == WritePath::Normal { before } else { after };
                    side.entry.rivals.observe(before, found, now, interval);
                }
                let is_put = plan.path == WritePath::Create;
                let is_authoritative = written.image.is_some() || is_put;
                let image = written
                    .image
                    .or_else(|| plan.changed(side.image().map(AsRef::as_ref)).map(Arc::new));
                side.learn(image, self.run.now(), is_authoritative);
                self.settle_doubt();
                Ok(Some(plan.path))
            }
            Err(WriteError::Refused(image)) => {
                self.run.refused(1.0);
                if let (Some(before), Some(found)) = (side.guess(), &image) {
                    side.entry.rivals.observe(before, found, now, interval);
                }
                side.learn(image, self.run.now(), true);
                if !self.has_landed() {
                    self.settle_doubt();
                    self.lose().await?;
                }
                Ok(None)
            }
            Err(WriteError::Trouble(trouble)) => {
                self.note_doubt(&trouble);
                self.wait_out(trouble).await?;
                Ok(None)
            }
        }
    }

    async fn write_together(
        &mut self,
        plans: &[WritePlan],
        now: EpochMillis,
    ) -> Result<Option<WritePath>, AcquireError> {
        let pending = match self.pending.take() {
            Some(pending) => pending,
            None => Pending {
                writes: [0, 1].map(|n| (self.sides[n].bucket.clone(), plans[n].clone())),
                token: self.run.token(),
            },
        };
        let interval = self.store.settings.claim_interval;
        match self
            .run
            .in_time(self.store.table.write_together(&pending.writes, &pending.token))
            .await
        {
            Ok(write_units) => {
                self.run.write_units += write_units;
                let after = self.run.now();
                for (side, (_, plan)) in self.sides.iter().zip(&pending.writes) {
                    self.note_clock(side, plan, now);
                }
                for (side, (_, plan)) in self.sides.iter_mut().zip(&pending.writes) {
                    let image = plan.changed(side.image().map(AsRef::as_ref)).map(Arc::new);
                    side.learn(image, after, plan.path == WritePath::Create);
                }
                Ok(Some(pending.writes[0].1.path))
            }
            Err(TogetherError::Cancelled(reasons)) => {
                let after = self.run.now();
                let mut trouble = None;
                for (side, reason) in self.sides.iter_mut().zip(reasons) {
                    // Each write of a transaction is prepared and committed: two units.
                    self.run.refused(2.0);
                    match reason {
                        Cancelled::None => {}
                        Cancelled::Refused(image) => {
                            if let (Some(before), Some(found)) = (side.guess(), &image) {
                                side.entry.rivals.observe(before, found, now, interval);
                            }
                            side.learn(image, after, true);
                        }
                        Cancelled::Trouble(reason) => trouble = Some(reason),
                    }
                }
                match trouble {
                    Some(trouble) => self.wait_out(trouble).await?,
                    None if self.has_landed() => {}
                    None => {
                        self.settle_doubt();
                        self.lose().await?;
                    }
                }
                Ok(None)
            }
            Err(TogetherError::Trouble(trouble)) => {
                self.note_doubt(&trouble);
                if self.doubt.is_some() || matches!(trouble, Trouble::Conflict) {
                    self.pending = Some(pending);
                }
                self.wait_out(trouble).await?;
                Ok(None)
            }
        }
    }

    /// Warns of a clock that was ahead, now that a claim has put its time right.
    fn note_clock(&self, side: &Side, plan: &WritePlan, now: EpochMillis) {
        let is_ahead = side.image().is_some_and(|image| is_clock_ahead(image, now));
        if plan.path == WritePath::Normal && is_ahead {
            self.store.counters.clocks_ahead.increment();
            tracing::warn!(
                bucket = %side.bucket,
                "the refill time was more than a minute ahead of this clock: it is pulled back"
            );
        }
    }

    async fn repair(
        &mut self,
        index: usize,
        plan: &WritePlan,
        now: EpochMillis,
    ) -> Result<(), AcquireError> {
        if self.run.is_over() {
            return Err(self.give_up());
        }
        self.run.attempts += 1;
        let written = self.store.write(self.run, &self.sides[index].bucket, plan).await;
        let after = self.run.now();
        match written {
            Ok(written) => {
                self.note_clock(&self.sides[index], plan, now);
                self.run.write_units += written.write_units;
                self.sides[index].learn(written.image, after, true);
                Ok(())
            }
            Err(WriteError::Refused(image)) => {
                self.run.refused(1.0);
                self.sides[index].learn(image, after, true);
                self.lose().await
            }
            Err(WriteError::Trouble(trouble)) => self.wait_out(trouble).await,
        }
    }

    /// Keeps what the item remembered before a write whose answer was lost.
    fn note_doubt(&mut self, trouble: &Trouble) {
        if matches!(trouble, Trouble::Away(_)) && self.doubt.is_none() {
            let ids = self.sides[0].image().map(|image| image.request_ids.clone());
            self.doubt = Some(ids.unwrap_or_default());
        }
    }

    fn has_landed(&self) -> bool {
        self.sides
            .iter()
            .any(|side| side.image().is_some_and(|image| image.request_ids.contains(&self.run.id)))
    }

    /// A write whose answer was lost did not land, as far as the item tells. When four others wrote
    /// since, it no longer can.
    fn settle_doubt(&mut self) {
        let Some(before) = self.doubt.take() else { return };
        let image = self.sides[0].image();
        if image.is_some_and(|image| super::is_overrun(&before, image, &self.run.id)) {
            self.store.counters.ambiguous.increment();
        }
    }

    /// "Contended" promises that nothing was taken: not while the answer to a write is missing.
    fn give_up(&mut self) -> AcquireError {
        match self.run.given_up() {
            AcquireError::Contended { .. } if self.doubt.is_some() => {
                AcquireError::Unavailable("the answer to a write was lost".into())
            }
            error => error,
        }
    }

    async fn lose(&mut self) -> Result<(), AcquireError> {
        if self.run.pause_after_loss().await { Ok(()) } else { Err(self.give_up()) }
    }

    /// Pauses where a repetition can help and there is time for one.
    async fn wait_out(&mut self, trouble: Trouble) -> Result<(), AcquireError> {
        if self.run.wait_out(trouble).await { Ok(()) } else { Err(self.give_up()) }
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
