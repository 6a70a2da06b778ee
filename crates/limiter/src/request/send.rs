//! Awaits a request: takes held tokens, or asks the store. Counts the outcome.

use std::future::IntoFuture;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::{LimitName, Resource};
use tracing::{Instrument as _, Span, field};

use super::acquire::AcquireRequest;
use super::wait::wait_for;
use crate::error::AcquireError;
use crate::guard::Granted;
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::program_metrics::OutcomeLabel;
use crate::store::Request;

impl AcquireRequest<&Limiter> {
    async fn send(self) -> Result<Permit, AcquireError> {
        #[cfg(feature = "leasing")]
        if let Some(permit) = self.take_held() {
            return Ok(permit);
        }
        let wait = self.limiter.wait_of(self.wait);
        let correction_deadline = self.limiter.guard().correction_deadline(self.deadline);
        let (limiter, request) = self.into_request()?;
        let ask = || in_acquire_span(&request, limiter.guard().take(&request));
        let result = match wait {
            Some(wait) => wait_for(limiter, &request, wait, &|| ask().boxed()).await,
            None => ask().await,
        };
        let result = Permit::of(limiter, correction_deadline, result);
        count(limiter, &request.resource, request.amounts.keys(), result.as_ref());
        result
    }

    /// Takes the tokens if they are held, as `try_acquire` does. Three kinds of requests do not
    /// take them here. A request that may wait does not, because others may be ahead of it. While
    /// spans are recorded, no request does, because `in_acquire_span` opens the span later. While
    /// the store is unavailable, no request does, because taking may start a lease.
    #[cfg(feature = "leasing")]
    fn take_held(&self) -> Option<Permit> {
        let leased = self.limiter.leased()?;
        let is_traced = tracing::span_enabled!(tracing::Level::INFO);
        let is_unavailable = self.limiter.guard().is_breaker_open();
        if self.wait.is_some() || is_traced || is_unavailable {
            return None;
        }
        leased.take_if_held(self)
    }
}

impl<'a> IntoFuture for AcquireRequest<&'a Limiter> {
    type Output = Result<Permit, AcquireError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Sends a request once, in a tracing span.
pub(crate) async fn in_acquire_span(
    request: &Request,
    asked: impl Future<Output = Result<Granted, AcquireError>>,
) -> Result<Granted, AcquireError> {
    let span = tracing::info_span!(
        "acquire",
        entity = %request.entity,
        resource = %request.resource,
        path = field::Empty,
        attempts = field::Empty,
        limited = field::Empty,
        degraded = field::Empty,
        retry_after_ms = field::Empty,
        write_units = field::Empty,
    );
    if span.is_disabled() {
        return asked.await;
    }
    let result = asked.instrument(span.clone()).await;
    record(&span, &result);
    result
}

fn record(span: &Span, result: &Result<Granted, AcquireError>) {
    match result {
        Ok(Granted::Normal(grant)) => {
            if let Some(path) = grant.cost.path {
                span.record("path", path.as_str());
            }
            span.record("attempts", grant.cost.attempts);
            span.record("write_units", grant.cost.write_units);
            span.record("limited", false);
        }
        Ok(Granted::Degraded(degraded, _)) => _ = span.record("degraded", field::display(degraded)),
        Err(AcquireError::LimitExceeded(exceeded)) => {
            span.record("limited", true);
            if let Some(after) = exceeded.retry_after {
                span.record("retry_after_ms", u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            }
        }
        Err(AcquireError::Contended { attempts }) => _ = span.record("attempts", attempts),
        Err(_) => {}
    }
}

/// Counts the result of a checked request for these limits.
pub(crate) fn count<'a>(
    limiter: &Limiter,
    resource: &Resource,
    limits: impl Iterator<Item = &'a LimitName>,
    result: Result<&Permit, &AcquireError>,
) {
    let near = result.map(Permit::near_limits).unwrap_or_default();
    let outcomes = limits.map(|limit| (limit, outcome(result, limit), near.contains(&limit)));
    limiter.metrics().acquired(resource, outcomes);
}

/// The outcome of a request for one of its limits.
fn outcome(result: Result<&Permit, &AcquireError>, limit: &LimitName) -> OutcomeLabel {
    match result {
        Ok(permit) if permit.degraded().is_some() => OutcomeLabel::Degraded,
        Ok(permit) if permit.shadowed().is_some() => OutcomeLabel::Shadowed,
        Ok(_) => OutcomeLabel::Granted,
        Err(AcquireError::LimitExceeded(exceeded)) => {
            let is_short = exceeded.violations().any(|violated| violated.limit == *limit);
            if is_short { OutcomeLabel::Refused } else { OutcomeLabel::NotTaken }
        }
        Err(AcquireError::NeverAdmissible(_)) => OutcomeLabel::NeverAdmissible,
        Err(AcquireError::Contended { .. }) => OutcomeLabel::Contended,
        Err(AcquireError::Unavailable(_)) => OutcomeLabel::Unavailable,
        Err(AcquireError::InvalidRequest(_) | AcquireError::Setup(_)) => OutcomeLabel::Failed,
    }
}
