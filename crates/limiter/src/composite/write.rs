//! Sending the plans of an acquire, and what their answers mean for it.

use std::sync::Arc;

use sluicegate_core::{EpochMillis, Presume, WritePath, WritePlan, is_clock_ahead, reconfigure};

use super::acquire::{Acquiring, Pending};
use super::images::{Entry, Known};
use super::side::Side;
use crate::error::AcquireError;
use crate::table::{Cancelled, Table, TogetherError, Trouble, WriteError};

impl<T: Table> Acquiring<'_, '_, '_, T> {
    /// Sends the plans; the path when they were done.
    pub(super) async fn write(
        &mut self,
        plans: &[WritePlan],
        now: EpochMillis,
    ) -> Result<Option<WritePath>, AcquireError> {
        if self.run.is_over() {
            return Err(self.give_up());
        }
        self.run.attempts += 1;
        self.met_silence = false;
        self.promises.iter_mut().for_each(|promise| promise.set_sent(true));
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
            None => {
                let buckets = self.sides.iter().map(|side| side.bucket.clone());
                let writes = buckets.zip(plans.iter().cloned()).collect();
                Pending { writes, token: self.run.token() }
            }
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
                Ok(pending.writes.first().map(|(_, plan)| plan.path))
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

    pub(super) async fn repair(
        &mut self,
        index: usize,
        plan: &WritePlan,
        now: EpochMillis,
    ) -> Result<(), AcquireError> {
        if self.run.is_over() {
            return Err(self.give_up());
        }
        match self.write_nothing(index, plan, now).await {
            Ok(true) => Ok(()),
            Ok(false) => self.try_again().await,
            Err(trouble) => self.wait_out(trouble).await,
        }
    }

    /// Brings items to their configuration before "no" is said; true when the decision is to be
    /// made again. "No" waits for this and never fails by it: the next refusal tries again.
    pub(super) async fn reconfigure(&mut self, entries: &[Arc<Entry>], now: EpochMillis) -> bool {
        for (index, entry) in entries.iter().enumerate() {
            let side = &self.sides[index];
            let may_bring = side.may_reconfigure && !self.run.is_over();
            if !may_bring || self.reconfiguration(side, now).is_none() {
                continue;
            }
            // Whichever request of this process writes there brings the configuration with it.
            let Ok(_permit) = entry.claims.try_acquire() else { continue };
            self.sides[index].catch_up();
            let Some(mut plan) = self.reconfiguration(&self.sides[index], now) else { return true };
            self.sides[index].may_reconfigure = false;
            let side = &self.sides[index];
            let is_due = |image: &Arc<_>| entry.may_bring(&plan, image, &side.configuration, now);
            if !side.image().is_some_and(is_due) {
                continue;
            }
            // A read costs less than a write that is refused.
            let may_refuse = |known: &Known| known.may_refuse(now, self.store.settings.deny_cache);
            if !side.is_fresh && !side.known.as_ref().is_some_and(may_refuse) {
                let bucket = side.bucket.clone();
                let Ok(image) = self.store.read_bucket(&bucket, self.run).await else { continue };
                let as_of = self.run.now();
                self.sides[index].learn(image, as_of, true);
                match self.reconfiguration(&self.sides[index], now) {
                    Some(on_what_is_there) => plan = on_what_is_there,
                    None => return true,
                }
                let side = &self.sides[index];
                let is_due =
                    |image: &Arc<_>| entry.may_bring(&plan, image, &side.configuration, now);
                if !side.image().is_some_and(is_due) {
                    continue;
                }
            }
            match self.write_nothing(index, &plan, now).await {
                Ok(true) => entry.note_brought(&self.sides[index].configuration, now),
                Ok(false) => {
                    let found = self.sides[index].image();
                    entry.note_lost(found.map(AsRef::as_ref), self.run.now());
                }
                Err(Trouble::Away(_)) => {}
                Err(_) => entry.note_answer(),
            }
            return true;
        }
        false
    }

    /// What brings a side's item to its configuration.
    pub(super) fn reconfiguration(&self, side: &Side, now: EpochMillis) -> Option<WritePlan> {
        reconfigure(side.image()?, self.request(side, Presume::Unchanged), now)
    }

    /// Sends a plan that takes nothing; true when it was done.
    async fn write_nothing(
        &mut self,
        index: usize,
        plan: &WritePlan,
        now: EpochMillis,
    ) -> Result<bool, Trouble> {
        self.run.attempts += 1;
        self.met_silence = false;
        let written = self.store.write(self.run, &self.sides[index].bucket, plan).await;
        let after = self.run.now();
        match written {
            Ok(written) => {
                self.note_clock(&self.sides[index], plan, now);
                self.run.write_units += written.write_units;
                let side = &mut self.sides[index];
                let is_authoritative = written.image.is_some();
                let image = written
                    .image
                    .or_else(|| plan.changed(side.image().map(AsRef::as_ref)).map(Arc::new));
                side.learn(image, after, is_authoritative);
                Ok(true)
            }
            Err(WriteError::Refused(image)) => {
                self.run.refused(1.0);
                self.sides[index].learn(image, after, true);
                Ok(false)
            }
            Err(WriteError::Trouble(trouble)) => Err(trouble),
        }
    }

    /// Keeps what the item remembered before a write whose answer was lost.
    fn note_doubt(&mut self, trouble: &Trouble) {
        if matches!(trouble, Trouble::Away(_)) && self.doubt.is_none() {
            let ids = self.sides[0].image().map(|image| image.request_ids.clone());
            self.doubt = Some(ids.unwrap_or_default());
            // It may have changed what the table said before.
            self.sides.iter_mut().for_each(|side| side.is_fresh = false);
        }
    }

    fn has_landed(&self) -> bool {
        self.sides
            .iter()
            .any(|side| side.image().is_some_and(|image| image.request_ids.contains(&self.run.id)))
    }

    /// A write whose answer was lost did not land, as far as the item tells. When four others wrote
    /// since, it no longer can.
    pub(super) fn settle_doubt(&mut self) {
        let Some(before) = self.doubt.take() else { return };
        let image = self.sides[0].image();
        if image.is_none_or(|image| super::is_overrun(&before, image, &self.run.id)) {
            self.store.counters.ambiguous.increment();
        }
    }

    /// Any other error promises that nothing was taken: not while the answer to a write is missing.
    /// Nor was anybody in the way of one who waited for a claim that the table left unanswered.
    pub(super) fn give_up(&mut self) -> AcquireError {
        match self.run.given_up() {
            error @ (AcquireError::Contended { .. } | AcquireError::Setup(_))
                if self.doubt.is_some() =>
            {
                AcquireError::Unavailable(error.into())
            }
            AcquireError::Contended { .. } if self.met_silence => AcquireError::Unavailable(
                "another request's claim of refill was not answered".into(),
            ),
            error => error,
        }
    }

    /// Somebody else was first.
    async fn lose(&mut self) -> Result<(), AcquireError> {
        self.promises.iter_mut().for_each(|promise| promise.set_sent(false));
        if let Some(refusal) = self.outrun() {
            return Err(refusal);
        }
        self.try_again().await
    }

    async fn try_again(&mut self) -> Result<(), AcquireError> {
        if self.run.pause_after_loss().await { Ok(()) } else { Err(self.give_up()) }
    }

    /// Pauses where a repetition can help and there is time for one.
    pub(super) async fn wait_out(&mut self, trouble: Trouble) -> Result<(), AcquireError> {
        if !matches!(trouble, Trouble::Away(_)) {
            self.sides.iter().for_each(|side| side.entry.note_answer());
        }
        self.promises.iter_mut().for_each(|promise| promise.set_sent(false));
        if self.run.wait_out(trouble).await { Ok(()) } else { Err(self.give_up()) }
    }
}
