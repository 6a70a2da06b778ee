//! Correcting what was taken: never refused, and guarded as long as there is time.
//!
//! An attempt whose answer was lost may come late. The item refuses it while it remembers the id; once
//! four others have written it can not. What is given back may then be given back twice, and is counted
//! as ambiguous where that is possible.

use std::sync::Arc;

use sluicegate_core::{
    Adjust, Adjustment, CompositeBucket, Force, Millitokens, Presume, RequestId, WritePath,
    WritePlan, adjust, extend,
};
use tokio::time::Instant;

use super::CompositeStore;
use super::images::{Entry, Known};
use super::run::Run;
use crate::error::{AcquireError, AdjustError};
use crate::lessor::Corrected;
use crate::store::{Adjusted, Correction};
use crate::table::{Table, Trouble, WriteError, Written};

/// Attempts with guards; after that the correction is forced through.
const GUARDED_ATTEMPTS: u32 = 12;

/// A correction under way.
pub(super) struct Adjusting<'s, 'r, 'c, T> {
    store: &'s CompositeStore<T>,
    run: &'r mut Run<'c>,
    correction: &'r Correction<'r>,
    entry: Arc<Entry>,
    image: Option<Arc<CompositeBucket>>,
    /// The table said so during this call.
    is_fresh: bool,
    /// What the item remembered before a write whose answer was lost.
    doubt: Option<Vec<RequestId>>,
    /// Attempts whose answers were lost: those that the item does not show may still come.
    unanswered: u32,
    /// No time is left for another pause.
    is_last: bool,
    adjusted: Adjusted,
}

impl<'s, 'r, 'c, T: Table> Adjusting<'s, 'r, 'c, T> {
    pub(super) fn new(
        store: &'s CompositeStore<T>,
        run: &'r mut Run<'c>,
        correction: &'r Correction<'r>,
    ) -> Self {
        let entry = store.images.entry(correction.bucket);
        Self {
            store,
            run,
            correction,
            entry,
            image: None,
            is_fresh: false,
            doubt: None,
            unanswered: 0,
            is_last: false,
            adjusted: Adjusted::default(),
        }
    }

    pub(super) async fn finish(mut self) -> Result<Corrected, AdjustError> {
        let result = self.correct().await;
        match result {
            Err(error @ AdjustError::Ambiguous(_)) => Err(error),
            // What was to be given back may have been, or may still be: the caller must not try again.
            Err(error) if self.unanswered > 0 && self.gives_back() => {
                self.store.counters.ambiguous.increment();
                Err(AdjustError::Ambiguous(error.into()))
            }
            // Any other error promises that nothing was done.
            Err(error @ (AdjustError::Contended | AdjustError::Setup(_)))
                if self.unanswered > 0 =>
            {
                Err(AdjustError::Unavailable(error.into()))
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.adjusted.write_units = self.run.write_units;
                let (image, attempts) = (self.image, self.run.attempts);
                Ok(Corrected { adjusted: self.adjusted, image, attempts })
            }
        }
    }

    async fn correct(&mut self) -> Result<(), AdjustError> {
        match self.entry.known() {
            Some(known) => self.image = known.image,
            // Evicted, or a lease from another process: one read.
            None => self.read().await?,
        }
        loop {
            let (plan, dropped) = match self.decide() {
                // The limit may be newer than the image.
                Adjustment::Write { dropped, .. } | Adjustment::Gone(dropped)
                    if !dropped.is_empty() && !self.is_fresh =>
                {
                    self.read().await?;
                    continue;
                }
                Adjustment::Write { plan, dropped } => (plan, dropped),
                Adjustment::Landed => {
                    self.doubt = None;
                    // One of them is what the item shows.
                    self.note_late(self.unanswered > 1);
                    self.cover_debt().await;
                    return Ok(());
                }
                Adjustment::Gone(dropped) => {
                    self.adjusted.dropped = dropped;
                    return Ok(());
                }
            };
            self.adjusted.dropped = dropped;
            self.adjusted.is_forced = plan.path == WritePath::Adjust && self.takes();
            self.run.attempts += 1;
            let written = self.store.write(self.run, self.correction.bucket, &plan).await;
            match written {
                Ok(written) => {
                    self.landed(&plan, written).await;
                    return Ok(());
                }
                Err(WriteError::Refused(image)) => {
                    self.run.refused(1.0);
                    self.look(image)?;
                    if !self.run.let_others_pass().await {
                        if self.is_last || self.run.is_over() {
                            return Err(AdjustError::Contended);
                        }
                        self.is_last = true;
                    } else if self.run.attempts > 1 {
                        // Others wrote during the pause: the image would lose to them, and a read
                        // costs less than a write.
                        self.read().await?;
                    }
                }
                Err(WriteError::Trouble(trouble)) => self.wait_out(trouble).await?,
            }
        }
    }

    fn decide(&self) -> Adjustment {
        let is_last = self.is_last || self.run.attempts >= GUARDED_ATTEMPTS || self.is_late();
        let adjustment = Adjust {
            bucket: self.correction.bucket,
            amounts: self.correction.amounts,
            configuration: self.correction.configuration,
            id: &self.run.id,
            interval: self.store.settings.claim_interval,
            presume: self.presume(),
            force: if is_last { Force::Yes } else { Force::No },
        };
        adjust(self.image.as_deref(), adjustment, self.run.now())
    }

    /// Less than a quarter of the time is left: the last resort needs some.
    fn is_late(&self) -> bool {
        Instant::now() + self.correction.deadline / 4 >= self.run.deadline
    }

    fn presume(&self) -> Presume {
        let is_first = self.run.attempts == 0;
        if is_first && self.entry.rivals.claimed_lately() {
            Presume::ClaimedSince
        } else {
            Presume::Unchanged
        }
    }

    fn takes(&self) -> bool {
        self.correction.amounts.values().any(|amount| *amount > Millitokens::ZERO)
    }

    /// A correction may take from one limit and give back of another.
    fn gives_back(&self) -> bool {
        self.correction.amounts.values().any(|amount| *amount < Millitokens::ZERO)
    }

    async fn landed(&mut self, plan: &WritePlan, written: Written) {
        self.run.write_units += written.write_units;
        if self.adjusted.is_forced {
            self.store.counters.forced_adjusts.increment();
        }
        let is_authoritative = written.image.is_some() || plan.path == WritePath::Create;
        let image = written.image.or_else(|| plan.changed(self.image.as_deref()).map(Arc::new));
        self.settle_doubt(image.as_deref());
        self.note_late(self.unanswered > 0);
        let now = self.run.now();
        self.entry.learn(Known { image: image.clone(), as_of: now, is_authoritative });
        self.image = image;
        // A transaction does not say what others took, and a claim has set the expiry for all.
        if !is_authoritative && plan.path != WritePath::Normal && self.takes() {
            match self.store.read_bucket(self.correction.bucket, self.run).await {
                Ok(image) => {
                    let as_of = self.run.now();
                    self.entry.learn(Known { image: image.clone(), as_of, is_authoritative: true });
                    self.image = image;
                }
                Err(trouble) => self.warn_of_debt(&trouble),
            }
        }
        self.cover_debt().await;
    }

    /// Counts tokens that may be given back once more by an attempt that comes late.
    fn note_late(&self, may_come: bool) {
        if may_come && self.gives_back() {
            self.store.counters.ambiguous.increment();
        }
    }

    fn warn_of_debt(&self, trouble: &Trouble) {
        tracing::warn!(
            bucket = %self.correction.bucket, %trouble,
            "a debt may outlive its bucket: the expiry could not be extended"
        );
    }

    async fn cover_debt(&mut self) {
        let now = self.run.now();
        if let Some(extension) = self.image.as_deref().and_then(|image| extend(image, now)) {
            self.extend(&extension).await;
        }
    }

    /// A debt beyond the expiry: one more unit, or the debt would be forgiven. The correction itself
    /// stands whatever becomes of this, which does nothing when it is done twice.
    async fn extend(&mut self, extension: &WritePlan) {
        loop {
            let table = &self.store.table;
            match self.run.in_time(table.write(self.correction.bucket, extension)).await {
                Ok(extended) => {
                    self.run.write_units += extended.write_units;
                    if let Some(image) = extended.image {
                        let as_of = self.run.now();
                        self.entry.learn(Known {
                            image: Some(image),
                            as_of,
                            is_authoritative: true,
                        });
                    }
                    return;
                }
                // Somebody else extended it further.
                Err(WriteError::Refused(_)) => return self.run.refused(1.0),
                Err(WriteError::Trouble(trouble)) => {
                    let may_pass = !matches!(trouble, Trouble::Setup(_));
                    if !(may_pass && self.run.pause().await) {
                        return self.warn_of_debt(&trouble);
                    }
                }
            }
        }
    }

    /// Takes over what a refusal or a read found, if it leaves the correction possible.
    fn look(&mut self, image: Option<Arc<CompositeBucket>>) -> Result<(), AdjustError> {
        let now = self.run.now();
        self.entry.learn(Known { image: image.clone(), as_of: now, is_authoritative: true });
        let has_landed =
            image.as_ref().is_some_and(|image| image.request_ids.contains(&self.run.id));
        if !has_landed {
            let is_refund = self.gives_back();
            let is_ambiguous = self.settle_doubt(image.as_deref());
            if is_ambiguous && is_refund {
                return Err(AdjustError::Ambiguous(
                    "four other writers came between, or the item is gone".into(),
                ));
            }
        }
        self.image = image;
        self.is_fresh = true;
        Ok(())
    }

    /// True, and counted, when the item can no longer tell whether a write landed.
    fn settle_doubt(&mut self, image: Option<&CompositeBucket>) -> bool {
        let Some(before) = self.doubt.take() else { return false };
        let is_ambiguous =
            image.is_none_or(|image| super::is_overrun(&before, image, &self.run.id));
        if is_ambiguous {
            self.store.counters.ambiguous.increment();
        }
        is_ambiguous
    }

    async fn read(&mut self) -> Result<(), AdjustError> {
        loop {
            match self.store.read_bucket(self.correction.bucket, self.run).await {
                Ok(image) => return self.look(image),
                Err(trouble) => self.pause_or(trouble).await?,
            }
        }
    }

    async fn wait_out(&mut self, trouble: Trouble) -> Result<(), AdjustError> {
        let is_lost = matches!(trouble, Trouble::Away(_));
        self.unanswered += u32::from(is_lost);
        if is_lost && self.doubt.is_none() {
            let ids = self.image.as_ref().map(|image| image.request_ids.clone());
            self.doubt = Some(ids.unwrap_or_default());
        }
        self.pause_or(trouble).await?;
        if is_lost { self.read().await } else { Ok(()) }
    }

    async fn pause_or(&mut self, trouble: Trouble) -> Result<(), AdjustError> {
        if self.run.wait_out(trouble).await {
            return Ok(());
        }
        Err(match self.run.given_up() {
            AcquireError::Unavailable(source) => AdjustError::Unavailable(source),
            AcquireError::Setup(error) => error.into(),
            _ => AdjustError::Contended,
        })
    }
}
