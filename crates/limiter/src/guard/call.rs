//! Wraps store calls: breaker check, classification of the result, fallback policy.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::answer::{StoreError, described, is_answer, is_told};
use super::breaker::TrialPermit;
use super::guarded::Guard;
use crate::clock::Clock;
use crate::degraded::{Cause, Degraded, OnUnavailable};
use crate::error::{AcquireError, AdjustError, LimitStatus};
use crate::store::{Adjusted, BucketGrant, Correction, Grant, Request};
use crate::store_error::BoxError;

/// How an acquire was granted.
#[derive(Debug)]
pub(crate) enum Granted {
    /// The store granted it.
    Store(Grant),
    /// Without the store: from buckets of this process, or from none.
    Degraded(Degraded, Vec<BucketGrant>),
}

impl Guard {
    /// Looks whether the store is there.
    pub(crate) async fn warm_up(&self) -> Result<(), AcquireError> {
        let checked = self.store.check(&self.clock, self.settings.connect_deadline).await;
        if is_answer(&checked) {
            self.health.note_connection();
            self.health.circuit.probed();
        }
        checked
    }

    /// Acquires from the store. If the store is unavailable, the limiter's policy decides.
    pub(crate) async fn take(self: &Arc<Self>, request: &Request) -> Result<Granted, AcquireError> {
        self.take_by(request, || self.store.acquire(request, &self.clock)).await
    }

    /// As [`take`](Self::take), with `acquire` as the call on the store.
    pub(crate) async fn take_by<'a>(
        self: &Arc<Self>,
        request: &Request,
        acquire: impl FnOnce() -> BoxFuture<'a, Result<Grant, AcquireError>>,
    ) -> Result<Granted, AcquireError> {
        let Some(permit) = self.permit() else {
            if let Some(grant) = self.store.acquire_held(request) {
                return Ok(Granted::Store(grant));
            }
            let not_asked = self.health.not_asked();
            let cause = Cause::NotAsked { since: not_asked.since };
            return self.degrade(request, cause, || not_asked.into());
        };
        let result = acquire().await;
        match &result {
            // The tokens were held: the store was not asked.
            Ok(grant) if grant.path.is_none() => drop(permit),
            result => self.note(permit, result),
        }
        match result {
            Ok(grant) => {
                // A grant of held tokens says nothing new.
                let is_news = grant.path.is_some();
                if is_news && self.settings.on_unavailable == OnUnavailable::Local {
                    self.health.local().note(request, &grant);
                }
                Ok(Granted::Store(grant))
            }
            Err(error) if error.away().is_some() => {
                let AcquireError::Unavailable(source) = error else { return Err(error) };
                let cause = Cause::Unanswered(described(&source).into());
                self.degrade(request, cause, || source)
            }
            Err(AcquireError::Unavailable(source)) => Err(match source.downcast() {
                Ok(error) if matches!(*error, AcquireError::Contended { .. }) => *error,
                Ok(error) => AcquireError::Unavailable(error),
                Err(source) => AcquireError::Unavailable(source),
            }),
            Err(error) => Err(error),
        }
    }

    /// Corrects a bucket, if the store is available.
    pub(crate) async fn correct(
        self: &Arc<Self>,
        correction: &Correction<'_>,
    ) -> Result<Adjusted, AdjustError> {
        let Some(permit) = self.permit() else {
            return Err(AdjustError::Unavailable(self.health.not_asked().into()));
        };
        // A correction of held tokens says nothing of the store.
        if let Some(adjusted) = self.store.adjust_held(correction) {
            return Ok(adjusted);
        }
        let result = self.store.adjust(correction, &self.clock).await;
        self.note(permit, &result);
        result
    }

    /// Reads buckets, if the store is available.
    pub(crate) async fn look(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        let Some(permit) = self.permit() else {
            return Err(AcquireError::Unavailable(self.health.not_asked().into()));
        };
        let result = self.store.peek(request, &self.clock).await;
        self.note(permit, &result);
        result
    }

    fn permit(self: &Arc<Self>) -> Option<TrialPermit<'_>> {
        let permit = self.health.circuit.permit();
        // A task must probe an unavailable store, and must be able to overtake a trial call that
        // hangs.
        if permit.as_ref().is_none_or(TrialPermit::is_trial) {
            self.keep();
        }
        permit
    }

    /// Notes what the result of a call says of the store.
    fn note<T, E: StoreError>(self: &Arc<Self>, permit: TrialPermit<'_>, result: &Result<T, E>) {
        let invalid = result.as_ref().err().and_then(StoreError::invalid);
        if invalid.is_some_and(|invalid| !is_told(invalid)) {
            return;
        }
        let Some(source) = result.as_ref().err().and_then(StoreError::away) else {
            self.health.note_connection();
            if permit.answered() {
                tracing::info!("the store answers again");
            }
            return;
        };
        if permit.unanswered(self.clock.now()) {
            self.counters().outages.increment();
            let policy = self.settings.on_unavailable;
            tracing::warn!(
                error = described(source),
                ?policy,
                "the store is unavailable: no call waits for it until it answers a probe"
            );
            self.keep();
        }
    }

    fn degrade(
        self: &Arc<Self>,
        request: &Request,
        cause: Cause,
        error: impl FnOnce() -> BoxError,
    ) -> Result<Granted, AcquireError> {
        self.counters().unanswered.increment();
        let policy = self.settings.on_unavailable;
        let parts = match policy {
            OnUnavailable::Deny => return Err(AcquireError::Unavailable(error())),
            OnUnavailable::Allow => Vec::new(),
            OnUnavailable::Local => {
                let now = self.clock.now();
                let parts = self.health.local().take(request, now, self.counters())?;
                // If the store was not asked, a task probed it a moment ago.
                if matches!(cause, Cause::Unanswered(_)) || !self.health.has_keeper() {
                    self.keep();
                }
                parts
            }
        };
        self.counters().degraded.increment();
        Ok(Granted::Degraded(Degraded { policy, cause }, parts))
    }
}
