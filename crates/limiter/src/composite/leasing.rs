//! The loop of a lease: decide from what is known, write, and decide again from what a refusal hands
//! over. It ends with the tokens, or with "no" said from an image that may say it.

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::FutureExt as _;
use sluicegate_core::{
    Acquire, Adjustment, Amounts, Change, CompositeBucket, Configuration, Decision, EpochMillis,
    Known, LIMITS_MAX, Millitokens, Presume, RequestId, Settle, Settlement, Standing, Wanted,
    WritePath, WritePlan, lease, lease_size, reconfigure, settle,
};

use super::CompositeStore;
use super::images::Entry;
use super::refusal::{counted_from, no};
use super::run::Run;
use crate::error::{AcquireError, InvalidRequest, LimitStatus};
use crate::lessor::{Counting, Doubt, Order};
use crate::table::{Table, Trouble, WriteError, Written};

/// Writes to lease ahead of need that may lose to others: whoever needs tokens waits for it.
const AHEAD_ATTEMPTS: u32 = 2;

pub(super) struct Leasing<'s, 'r, 'c, T> {
    store: &'s CompositeStore<T>,
    run: &'r mut Run<'c>,
    order: &'r Order<'r>,
    entry: Arc<Entry>,
    /// The limits of the order, or newer ones.
    configuration: Cow<'r, Configuration>,
    /// Whether its levels may be read again: not twice in a call.
    may_update: bool,
    pub(super) image: Option<Arc<CompositeBucket>>,
    /// The table said so during this call.
    is_fresh: bool,
    pub(super) doubt: Option<Doubt>,
    /// What was leased in a write that was not answered is not there any more: only the rest of it is
    /// done, under its id.
    is_fence: bool,
    /// Whether the item may be brought to the configuration before "no" is said: once in a call.
    may_reconfigure: bool,
}

/// What an image comes to.
enum Step {
    Write { plan: WritePlan, leased: Amounts },
    Repair(WritePlan),
    Landed,
    Nothing,
    Short(Vec<Standing>),
    Unknown(InvalidRequest),
}

impl<'s, 'r, 'c, T: Table> Leasing<'s, 'r, 'c, T> {
    pub(super) fn new(
        store: &'s CompositeStore<T>,
        run: &'r mut Run<'c>,
        order: &'r Order<'r>,
        doubt: Option<Doubt>,
    ) -> Self {
        let entry = store.images.entry(order.bucket);
        Self {
            store,
            run,
            order,
            entry,
            configuration: Cow::Borrowed(order.configuration),
            may_update: true,
            image: None,
            is_fresh: false,
            doubt,
            is_fence: false,
            may_reconfigure: true,
        }
    }

    pub(super) async fn finish(&mut self) -> Result<(Amounts, Option<WritePath>), AcquireError> {
        let is_resolving = self.doubt.is_some();
        match self.entry.known() {
            // A doubt is settled by what the item remembers now.
            Some(known) if self.doubt.is_none() => self.image = known.image,
            _ => self.read().await?,
        }
        loop {
            self.give_up_what_is_forgotten()?;
            self.update_configuration().await;
            let now = self.run.now();
            match self.step(now) {
                Step::Nothing => return Ok((Amounts::new(), None)),
                Step::Landed => {
                    let doubt = self.doubt.take();
                    return Ok((doubt.map(|doubt| doubt.leased).unwrap_or_default(), None));
                }
                Step::Write { plan, leased } => {
                    if self.write(&plan, &leased).await? {
                        self.doubt = None;
                        return Ok((leased, Some(plan.path)));
                    }
                }
                Step::Repair(plan) => _ = self.write(&plan, &Amounts::new()).await?,
                Step::Short(_) if is_resolving && self.is_fresh && !self.is_fence => {
                    self.is_fence = true;
                }
                Step::Short(standings) => match self.reconfiguration(now) {
                    Some(plan) => self.reconfigure(&plan, now).await,
                    None if self.may_refuse(now) => return Err(self.refusal(standings)),
                    None => self.read().await?,
                },
                Step::Unknown(unknown) if self.is_fresh => return Err(unknown.into()),
                Step::Unknown(_) => self.read().await?,
            }
        }
    }

    /// The bucket as it is now, unless what is known of it refuses the order.
    pub(super) async fn look(&mut self) -> Result<Option<Arc<CompositeBucket>>, AcquireError> {
        let now = self.run.now();
        let deny_cache_ms = self.store.policy().deny_cache_ms;
        if let Some(known) = self.entry.known().filter(|known| known.may_refuse(now, deny_cache_ms))
        {
            self.image = known.image;
            if let Step::Short(standings) = self.step(now)
                && self.reconfiguration(now).is_none()
            {
                return Err(self.refusal(standings));
            }
        }
        self.read().await?;
        Ok(self.image.clone())
    }

    /// Reads levels again of which the item follows a change that the order does not know.
    async fn update_configuration(&mut self) {
        let Some(image) = self.image.clone() else { return };
        if self.configuration.is_behind(&image) && std::mem::replace(&mut self.may_update, false) {
            let (bucket, known) = (self.order.bucket, &self.configuration);
            let newer = self.store.updated(bucket, &self.entry, known, &image, self.run).boxed();
            if let Some(newer) = newer.await {
                self.configuration = Cow::Owned(newer.as_ref().clone());
            }
        }
    }

    /// Ends a doubt that can no longer be settled: sent again, it might be done twice.
    fn give_up_what_is_forgotten(&mut self) -> Result<(), AcquireError> {
        let (Some(doubt), Some(image)) = (&mut self.doubt, &self.image) else { return Ok(()) };
        let is_seen = image.request_ids.contains(&doubt.id);
        doubt.is_lost = !is_seen && is_overrun(&doubt.remembered, image, &doubt.id);
        if doubt.is_lost {
            return Err(AcquireError::Unavailable("the answer to a write was lost".into()));
        }
        Ok(())
    }

    fn step(&self, now: EpochMillis) -> Step {
        let Order { bucket, wanted, returned, counting, .. } = *self.order;
        let configuration = self.configuration.as_ref();
        let image = self.image.as_deref();
        let leased = match &self.doubt {
            _ if self.is_fence => Amounts::new(),
            Some(doubt) if !wanted.is_empty() => doubt.leased.clone(),
            _ => lease_size(image, wanted, returned, configuration, now),
        };
        let counted = match counting {
            Counting::Leased => less(&leased, returned),
            Counting::Used(used) => used.clone(),
        };
        let settlement = Settlement { returned: returned.clone(), counted };
        let id = &self.run.id;
        if leased.is_empty() {
            let settling = Settle { bucket, settlement: &settlement, configuration, id };
            return match settle(image, settling, now) {
                Adjustment::Write { plan, .. } => Step::Write { plan, leased },
                Adjustment::Landed => Step::Landed,
                Adjustment::Gone(_) => Step::Nothing,
            };
        }
        let acquire = self.request(&leased, self.presume(now));
        match lease(image, acquire, &settlement, now) {
            Decision::Write(plan) => Step::Write { plan, leased },
            Decision::Repair(plan) => Step::Repair(plan),
            Decision::Landed => Step::Landed,
            Decision::Short(standings) => Step::Short(standings),
            Decision::Unknown(limit) => Step::Unknown(InvalidRequest::UnknownLimit(limit)),
            Decision::Full(limit) => {
                let (entity, max) = (bucket.entity.clone(), LIMITS_MAX);
                Step::Unknown(InvalidRequest::BucketFull { entity, limit, max })
            }
        }
    }

    fn request<'a>(&'a self, amounts: &'a Amounts, presume: Presume) -> Acquire<'a> {
        let (bucket, configuration) = (self.order.bucket, self.configuration.as_ref());
        let (id, interval) = (&self.run.id, self.store.settings.claim_interval);
        Acquire { bucket, amounts, configuration, id, interval, presume }
    }

    /// What brings the item to the configuration.
    fn reconfiguration(&self, now: EpochMillis) -> Option<WritePlan> {
        let image = self.image.as_ref().filter(|_| self.may_reconfigure)?;
        let wanted = self.order.wanted.iter();
        let least = wanted.map(|(limit, want)| (limit.clone(), want.least)).collect();
        reconfigure(image, self.request(&least, Presume::Unchanged), now)
    }

    /// Brings the item to the configuration; "no" waits for this and never fails by it.
    async fn reconfigure(&mut self, plan: &WritePlan, now: EpochMillis) {
        let is_due = |image: &Arc<_>| self.entry.may_bring(plan, image, &self.configuration, now);
        if !self.image.as_ref().is_some_and(is_due) {
            self.may_reconfigure = false;
            return;
        }
        // A read costs less than a write that is refused.
        if !self.may_refuse(now) {
            match self.store.read_bucket(self.order.bucket, self.run).await {
                Ok(image) => self.learn(image, true),
                Err(_) => self.may_reconfigure = false,
            }
            return;
        }
        self.may_reconfigure = false;
        self.run.attempts += 1;
        match self.store.write(self.run, self.order.bucket, plan).await {
            Ok(written) => {
                self.landed(plan, written);
                self.entry.note_brought(&self.configuration, now);
            }
            Err(WriteError::Refused(image)) => {
                self.run.refused(1.0);
                self.learn(image, true);
                self.entry.note_lost(self.image.as_deref(), self.run.now());
            }
            Err(WriteError::Trouble(_)) => {}
        }
    }

    fn presume(&self, now: EpochMillis) -> Presume {
        let interval = i64::from(self.store.settings.claim_interval.0);
        let is_stale =
            |image: &Arc<CompositeBucket>| now.get() - image.refilled_at.get() > interval;
        let is_guess = !self.is_fresh && self.image.as_ref().is_some_and(is_stale);
        if is_guess && self.entry.rivals.claimed_lately() {
            Presume::ClaimedSince
        } else {
            Presume::Unchanged
        }
    }

    fn may_refuse(&self, now: EpochMillis) -> bool {
        let deny_cache_ms = self.store.policy().deny_cache_ms;
        // What was known before a write whose answer was lost does not tell whether it landed.
        let known = self.entry.known().filter(|_| self.doubt.is_none());
        self.is_fresh || known.is_some_and(|known| known.may_refuse(now, deny_cache_ms))
    }

    /// "No" after losing to somebody who claimed a moment ago and left too little: what has accrued
    /// since is a few milliseconds' worth, for which everybody on the bucket writes.
    fn outrun(&self) -> Option<AcquireError> {
        let interval = u128::from(self.store.settings.claim_interval.0);
        let before_ms = interval.min(self.store.settings.deny_cache.as_millis());
        let (at, now) = (self.image.as_ref()?.refilled_at, self.run.now());
        if self.reconfiguration(now).is_some() {
            return None;
        }
        let age_ms = u128::from(at.get().abs_diff(now.get()));
        if age_ms >= before_ms && (at < self.run.began || age_ms >= interval) {
            return None;
        }
        let Step::Short(mut standings) = self.step(at) else { return None };
        for standing in &mut standings {
            standing.wait = counted_from(now, at, standing.wait);
        }
        Some(self.refusal(standings))
    }

    fn refusal(&self, standings: Vec<Standing>) -> AcquireError {
        let status = |standing| LimitStatus::new(&self.order.bucket.entity, standing);
        no(standings.into_iter().map(status).collect())
    }

    /// Sends a plan; true when it was done.
    async fn write(&mut self, plan: &WritePlan, leased: &Amounts) -> Result<bool, AcquireError> {
        if self.run.is_over() {
            return Err(self.run.given_up());
        }
        self.run.attempts += 1;
        match self.store.write(self.run, self.order.bucket, plan).await {
            Ok(written) => {
                self.landed(plan, written);
                Ok(true)
            }
            Err(WriteError::Refused(image)) => {
                self.run.refused(1.0);
                let interval = self.store.settings.claim_interval;
                let guess = self.image.as_ref().filter(|_| !self.is_fresh);
                if let (Some(before), Some(found)) = (guess, &image) {
                    self.entry.rivals.observe(before, found, self.run.now(), interval);
                }
                self.learn(image, true);
                if let Some(refusal) = self.outrun() {
                    return Err(refusal);
                }
                if self.run.attempts >= AHEAD_ATTEMPTS && self.is_ahead_of_need() {
                    return Err(self.run.given_up());
                }
                if self.run.pause_after_loss().await { Ok(false) } else { Err(self.run.given_up()) }
            }
            Err(WriteError::Trouble(trouble)) => {
                // A plan without an id does nothing when it is done twice.
                let has_id =
                    plan.changes.iter().any(|change| matches!(change, Change::Remember(_)));
                let is_put = plan.path == WritePath::Create;
                if matches!(trouble, Trouble::Away(_)) && (has_id || is_put) {
                    self.note_doubt(leased);
                }
                if self.run.wait_out(trouble).await { Ok(false) } else { Err(self.run.given_up()) }
            }
        }
    }

    /// Nobody waits for these tokens, and there are others who do for the same.
    fn is_ahead_of_need(&self) -> bool {
        let is_no_need = |want: &Wanted| want.least == Millitokens::ZERO;
        !self.order.wanted.is_empty() && self.order.wanted.values().all(is_no_need)
    }

    fn note_doubt(&mut self, leased: &Amounts) {
        let image = self.image.as_ref();
        let remembered = image.map(|image| image.request_ids.clone()).unwrap_or_default();
        match &mut self.doubt {
            // One of two, and only one of them leased: nobody holds what it may have taken.
            Some(doubt) if doubt.leased != *leased => {
                self.store.counters.ambiguous.increment();
                doubt.leased.clear();
            }
            Some(_) => {}
            None => {
                let (id, leased) = (self.run.id.clone(), leased.clone());
                self.doubt = Some(Doubt { id, leased, remembered, is_lost: false });
            }
        }
    }

    fn landed(&mut self, plan: &WritePlan, written: Written) {
        self.run.write_units += written.write_units;
        let is_authoritative = written.image.is_some() || plan.path == WritePath::Create;
        let image = written.image.or_else(|| plan.changed(self.image.as_deref()).map(Arc::new));
        self.learn(image, is_authoritative);
    }

    fn learn(&mut self, image: Option<Arc<CompositeBucket>>, is_authoritative: bool) {
        let as_of = self.run.now();
        self.entry.learn(Known { image: image.clone(), as_of, is_authoritative });
        self.image = image;
        self.is_fresh = is_authoritative;
    }

    async fn read(&mut self) -> Result<(), AcquireError> {
        loop {
            match self.store.read_bucket(self.order.bucket, self.run).await {
                Ok(image) => {
                    self.learn(image, true);
                    return Ok(());
                }
                Err(trouble) => {
                    if !self.run.wait_out(trouble).await {
                        return Err(self.run.given_up());
                    }
                }
            }
        }
    }
}

/// What is taken less what comes back.
fn less(taken: &Amounts, returned: &Amounts) -> Amounts {
    let mut net = taken.clone();
    for (limit, amount) in returned {
        let sum = net.entry(limit.clone()).or_default();
        *sum = Millitokens::saturating(i128::from(sum.get()) - i128::from(amount.get()));
    }
    net
}

/// Whether so many others wrote since the item remembered `before` that it may have forgotten `id`.
fn is_overrun(before: &[RequestId], now: &CompositeBucket, id: &RequestId) -> bool {
    let mut others = now.request_ids.iter().filter(|seen| *seen != id);
    let is_full = now.request_ids.len() >= RequestId::REMEMBERED;
    is_full && !others.any(|seen| before.contains(seen))
}
