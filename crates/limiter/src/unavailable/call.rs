//! Wraps store calls: breaker check, classification of the result, fallback policy.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::breaker::TrialPermit;
use super::{Cause, Degraded, OnUnavailable};
use crate::BoxError;
use crate::clock::Clock;
use crate::error::{AcquireError, AdjustError, InvalidRequest, LimitStatus};
use crate::limiter::Limiter;
use crate::store::{Adjusted, BucketGrant, Correction, Grant, Request, Store};

/// How an acquire was granted.
#[derive(Debug)]
pub(crate) enum Granted {
    /// The store granted it.
    Store(Grant),
    /// Without the store: from buckets of this process, or from none.
    Degraded(Degraded, Vec<BucketGrant>),
}

/// An error that may mean that the store is unavailable.
pub(super) trait StoreError {
    /// The error met instead of an answer.
    fn away(&self) -> Option<&BoxError>;
    /// The reason why the request is invalid.
    fn invalid(&self) -> Option<&InvalidRequest>;
}

impl StoreError for AcquireError {
    fn away(&self) -> Option<&BoxError> {
        let Self::Unavailable(source) = self else { return None };
        // The deadline ended a write, and the last result of the store was not silence.
        let is_answer = |error: &Self| matches!(error, Self::Contended { .. } | Self::Setup(_));
        let has_answered = source.downcast_ref().is_some_and(is_answer);
        (!has_answered).then_some(source)
    }

    fn invalid(&self) -> Option<&InvalidRequest> {
        let Self::InvalidRequest(invalid) = self else { return None };
        Some(invalid)
    }
}

impl StoreError for AdjustError {
    fn away(&self) -> Option<&BoxError> {
        let source = match self {
            Self::Unavailable(source) | Self::Ambiguous(source) => source,
            _ => return None,
        };
        match source.downcast_ref() {
            Some(Self::Unavailable(source)) => Some(source),
            Some(_) => None,
            None => matches!(self, Self::Unavailable(_)).then_some(source),
        }
    }

    fn invalid(&self) -> Option<&InvalidRequest> {
        let Self::InvalidRequest(invalid) = self else { return None };
        Some(invalid)
    }
}

/// True if it took a call of the store to find out.
const fn is_told(invalid: &InvalidRequest) -> bool {
    matches!(invalid, InvalidRequest::UnknownLimit(_) | InvalidRequest::BucketFull { .. })
}

/// True if the result came from the store.
pub(super) fn is_answer<T, E: StoreError>(result: &Result<T, E>) -> bool {
    result.as_ref().err().and_then(StoreError::away).is_none()
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Checks that the store answers, which makes the first connection. If it is called before the
    /// first request, that request need not wait for the connection. A read of half a unit on
    /// DynamoDB.
    ///
    /// # Errors
    /// As an acquire, except that no limit is short. `Unavailable` after the
    /// [`connect_deadline`](Self::connect_deadline), under every setting.
    pub async fn warm_up(&self) -> Result<(), AcquireError> {
        let checked = self.store().check(self.clock(), self.connect_time()).await;
        if is_answer(&checked) {
            self.outage().note_connection();
            self.outage().circuit.probed();
        }
        checked
    }

    /// Acquires from the store. If the store is unavailable, the limiter's policy decides.
    pub(crate) async fn take(&self, request: &Request) -> Result<Granted, AcquireError> {
        self.take_by(request, || self.store().acquire(request, self.clock()).boxed()).await
    }

    /// As [`take`](Self::take), with `acquire` as the call on the store.
    pub(crate) async fn take_by<'a>(
        &self,
        request: &Request,
        acquire: impl FnOnce() -> BoxFuture<'a, Result<Grant, AcquireError>>,
    ) -> Result<Granted, AcquireError> {
        let Some(permit) = self.permit() else {
            if let Some(grant) = self.store().acquire_held(request) {
                return Ok(Granted::Store(grant));
            }
            let not_asked = self.outage().not_asked();
            let cause = Cause::NotAsked { since: not_asked.since };
            return self.degrade(request, cause, || not_asked.into());
        };
        // Boxed, for two reasons: a decision without the store need not carry the size of the call,
        // and the nested type would exceed the default `recursion_limit` of crates that await it.
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
                if is_news && self.options().on_unavailable == OnUnavailable::Local {
                    self.outage().local().note(request, &grant);
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
        &self,
        correction: &Correction<'_>,
    ) -> Result<Adjusted, AdjustError> {
        let Some(permit) = self.permit() else {
            return Err(AdjustError::Unavailable(self.outage().not_asked().into()));
        };
        // A correction of held tokens says nothing of the store.
        if let Some(adjusted) = self.store().adjust_held(correction) {
            return Ok(adjusted);
        }
        let result = self.store().adjust(correction, self.clock()).boxed().await;
        self.note(permit, &result);
        result
    }

    /// Reads buckets, if the store is available.
    pub(crate) async fn look(&self, request: &Request) -> Result<Vec<LimitStatus>, AcquireError> {
        let Some(permit) = self.permit() else {
            return Err(AcquireError::Unavailable(self.outage().not_asked().into()));
        };
        let result = self.store().peek(request, self.clock()).boxed().await;
        self.note(permit, &result);
        result
    }

    fn permit(&self) -> Option<TrialPermit<'_>> {
        let permit = self.outage().circuit.permit();
        // A task must probe an unavailable store, and must be able to overtake a trial call that
        // hangs.
        if permit.as_ref().is_none_or(TrialPermit::is_trial) {
            self.keep();
        }
        permit
    }

    /// Notes what the result of a call says of the store.
    fn note<T, E: StoreError>(&self, permit: TrialPermit<'_>, result: &Result<T, E>) {
        let invalid = result.as_ref().err().and_then(StoreError::invalid);
        if invalid.is_some_and(|invalid| !is_told(invalid)) {
            return;
        }
        let Some(source) = result.as_ref().err().and_then(StoreError::away) else {
            self.outage().note_connection();
            if permit.answered() {
                tracing::info!("the store answers again");
            }
            return;
        };
        if permit.unanswered(self.clock().now()) {
            self.counters().outages.increment();
            let policy = self.options().on_unavailable;
            tracing::warn!(
                error = described(source),
                ?policy,
                "the store is unavailable: no call waits for it until it answers a probe"
            );
            self.keep();
        }
    }

    fn degrade(
        &self,
        request: &Request,
        cause: Cause,
        error: impl FnOnce() -> BoxError,
    ) -> Result<Granted, AcquireError> {
        self.counters().unanswered.increment();
        let policy = self.options().on_unavailable;
        let parts = match policy {
            OnUnavailable::Deny => return Err(AcquireError::Unavailable(error())),
            OnUnavailable::Allow => Vec::new(),
            OnUnavailable::Local => {
                let now = self.clock().now();
                let parts = self.outage().local().take(request, now, self.counters())?;
                // If the store was not asked, a task probed it a moment ago.
                if matches!(cause, Cause::Unanswered(_)) || !self.outage().has_keeper() {
                    self.keep();
                }
                parts
            }
        };
        self.counters().degraded.increment();
        Ok(Granted::Degraded(Degraded { policy, cause }, parts))
    }

    /// The most time that reaching the store may take.
    pub(super) fn connect_time(&self) -> Duration {
        self.options().connect_deadline
    }
}

/// An error with its sources.
fn described(error: &BoxError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
