//! Acquiring: decide from what is known, write, and decide again from what a refusal hands over.
//!
//! One bucket, or a child's and its parent's in one transaction: the same loop. It ends with a
//! grant, with "no" said from an image that may say it, or with the reason why it cannot tell.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{
    Acquire, BucketId, Decision, EpochMillis, LIMITS_MAX, Presume, RequestId, WritePath, WritePlan,
    decide, standings,
};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::CompositeStore;
use super::images::Entry;
use super::promises::Promise;
use super::run::Run;
use super::side::Side;
use crate::error::{AcquireError, InvalidRequest, LimitStatus};
use crate::store::Part;
use crate::table::Table;

/// How long a task waits for the answer to another's write before it tries for itself.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// What the sides of a request come to.
enum Step {
    Granted(WritePath),
    Write(Vec<WritePlan>),
    /// Puts one side's clock right; then decide again.
    Repair(usize, WritePlan),
    /// Some side looks short.
    Short,
    /// This side is short if other requests of this process get what they are about to take.
    Promised(usize),
    Unknown(InvalidRequest),
}

/// A transaction whose answer was lost: the same again, under the same token, is done once.
pub(super) struct Pending {
    pub(super) writes: Vec<(BucketId, WritePlan)>,
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
    /// What it is about to take itself.
    pub(super) promises: Vec<Promise>,
    has_waited: bool,
    /// The table answered nothing while it waited for another's claim, and it has tried nothing
    /// since.
    pub(super) met_silence: bool,
    pub(super) refreshed_configuration: bool,
}

impl<'s, 'r, 'c, T: Table> Acquiring<'s, 'r, 'c, T> {
    pub(super) fn new(
        store: &'s CompositeStore<T>,
        run: &'r mut Run<'c>,
        sides: Vec<Side>,
    ) -> Self {
        Self {
            store,
            run,
            sides,
            doubt: None,
            pending: None,
            promises: Vec::new(),
            has_waited: false,
            met_silence: false,
            refreshed_configuration: false,
        }
    }

    /// Runs to its end: the parts that were taken, and by which path.
    pub(super) async fn finish(mut self) -> Result<(Vec<Part>, WritePath), AcquireError> {
        let entries: Vec<_> = self.sides.iter().map(|side| side.entry.clone()).collect();
        let mut permits: Vec<Option<SemaphorePermit<'_>>> = entries.iter().map(|_| None).collect();
        self.read_first().await?;
        loop {
            self.update_configurations().await;
            let now = self.run.now();
            let presumed: Vec<_> = self.sides.iter().map(|side| self.presume(side, now)).collect();
            match self.step(&presumed, now) {
                Step::Granted(path) => return Ok((self.parts(), path)),
                Step::Unknown(unknown) => self.look_again(unknown).await?,
                Step::Short => {
                    permits.iter_mut().for_each(|permit| *permit = None);
                    if self.reconfigure(&entries, now).await {
                        continue;
                    }
                    if let Some(refusal) = self.refusal(now) {
                        self.settle_doubt();
                        return Err(refusal);
                    }
                    self.refresh().await?;
                }
                Step::Promised(index) => {
                    permits.iter_mut().for_each(|permit| *permit = None);
                    let is_first = !std::mem::replace(&mut self.has_waited, true);
                    if is_first || self.is_overdrawn(index) {
                        if self.run.is_over() {
                            return Err(self.give_up());
                        }
                        if !self.wait_for_answer(index).await {
                            self.refresh().await?;
                        }
                    } else if let Some(refusal) = self.refusal_for_others(now) {
                        self.settle_doubt();
                        return Err(refusal);
                    } else {
                        self.refresh().await?;
                    }
                }
                Step::Repair(index, plan) => self.repair(index, &plan, now).await?,
                Step::Write(plans) => {
                    self.promise();
                    if self.claim(&entries, &mut permits, &plans).await {
                        continue;
                    }
                    if let Some(path) = self.write(&plans, now).await? {
                        return Ok((self.parts(), path));
                    }
                    // Who lost a claim to another process tries again before the others of this
                    // one: at the end of the line it would find new tokens and lose again.
                    if self.run.has_paused() {
                        permits.iter_mut().for_each(|permit| *permit = None);
                    }
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
        self.sides.iter().map(Side::part).collect()
    }

    /// What to take for granted about a bucket.
    fn presume(&self, side: &Side, now: EpochMillis) -> Presume {
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
        let is_due = age * 2 > interval && !side.is_fresh && !side.entry.rivals.claimed_lately();
        // Who waited for another's claim uses it: claiming anew would keep those behind waiting.
        let is_free = side.entry.claims.available_permits() > 0;
        if is_due && is_free { Presume::ClaimDue } else { Presume::Unchanged }
    }

    fn step(&self, presumed: &[Presume], now: EpochMillis) -> Step {
        if let Some(pending) = &self.pending {
            return Step::Write(pending.writes.iter().map(|(_, plan)| plan.clone()).collect());
        }
        let mut plans = Vec::with_capacity(self.sides.len());
        let mut is_short = false;
        for (index, (side, presume)) in self.sides.iter().zip(presumed).enumerate() {
            let acquire = self.request(side, *presume);
            let Some(decision) = self.decide(side, acquire, now) else {
                return Step::Promised(index);
            };
            match decision {
                Decision::Write(plan) => plans.push(plan),
                Decision::Repair(plan) => return Step::Repair(index, plan),
                // All sides are written at once, under one id.
                Decision::Landed => return Step::Granted(WritePath::Retry),
                Decision::Short(_) => is_short = true,
                Decision::Unknown(limit) => {
                    return Step::Unknown(InvalidRequest::UnknownLimit(limit));
                }
                Decision::Full(limit) => {
                    let (entity, max) = (side.bucket.entity.clone(), LIMITS_MAX);
                    return Step::Unknown(InvalidRequest::BucketFull { entity, limit, max });
                }
            }
        }
        if is_short { Step::Short } else { Step::Write(plans) }
    }

    pub(super) fn request<'a>(&'a self, side: &'a Side, presume: Presume) -> Acquire<'a> {
        Acquire {
            bucket: &side.bucket,
            amounts: &side.amounts,
            configuration: &side.configuration,
            id: &self.run.id,
            interval: self.store.settings.claim_interval,
            presume,
        }
    }

    /// Decides on one side; `None` when it depends on what becomes of other requests.
    fn decide(&self, side: &Side, acquire: Acquire<'_>, now: EpochMillis) -> Option<Decision> {
        let image = side.image().map(AsRef::as_ref);
        let Some(left) = self.left(side) else { return Some(decide(image, acquire, now)) };
        match decide(Some(&left), acquire, now) {
            Decision::Short(_) | Decision::Repair(_) => match decide(image, acquire, now) {
                Decision::Write(_) => None,
                decision => Some(decision),
            },
            decision => Some(decision),
        }
    }

    fn promise(&mut self) {
        if self.promises.is_empty() {
            let promise = |side: &Side| Promise::new(&side.entry, &side.amounts);
            self.promises = self.sides.iter().map(promise).collect();
        }
    }

    /// Waits until one of the others on this side's bucket is answered; false when none is in time.
    /// Then nobody knows what they take, and "no" needs an answer of the table's.
    async fn wait_for_answer(&mut self, index: usize) -> bool {
        let entry = self.sides[index].entry.clone();
        let mut answered = std::pin::pin!(entry.answered.notified());
        // From here on no answer is missed; one may have come before.
        answered.as_mut().enable();
        let mut is_answered = true;
        if self.left(&self.sides[index]).is_some() {
            let until = self.run.deadline.min(Instant::now() + ANSWER_TIME);
            is_answered = tokio::time::timeout_at(until, answered).await.is_ok();
        }
        let side = &mut self.sides[index];
        side.catch_up();
        side.is_fresh &= is_answered;
        is_answered
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
            let entry = &entries[index];
            permits[index] = match entry.claims.try_acquire() {
                Ok(permit) => Some(permit),
                Err(_) => {
                    waited = true;
                    let (answers, since) = (entry.answers(), Instant::now());
                    // Closed never; the time of the call ends it elsewhere.
                    let permit = tokio::time::timeout_at(self.run.deadline, entry.claims.acquire())
                        .await
                        .ok()
                        .and_then(Result::ok);
                    // With a permit, too: who had it before may have waited in vain until now.
                    self.met_silence |=
                        entry.answers() == answers && self.run.is_silence(since.elapsed());
                    permit
                }
            };
        }
        if waited {
            self.sides.iter_mut().for_each(Side::catch_up);
        }
        waited && !self.run.is_over()
    }
}
