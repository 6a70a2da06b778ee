//! Sending a request to the store: once, or in its turn until the tokens are there.

use std::future::Future;
use std::time::Duration;

use futures_util::future::{Either, select};
use sluicegate_core::BucketId;
use tracing::{Instrument, Span, field};

use crate::clock::Clock;
use crate::error::{AcquireError, LimitExceeded};
use crate::limiter::Limiter;
use crate::store::{Grant, Request, Store};

/// One acquire, with its span.
pub(super) async fn attempt<S: Store, C: Clock>(
    limiter: &Limiter<S, C>,
    request: &Request,
) -> Result<Grant, AcquireError> {
    let span = tracing::info_span!(
        "acquire",
        entity = %request.entity,
        resource = %request.resource,
        path = field::Empty,
        attempts = field::Empty,
        limited = field::Empty,
        retry_after_ms = field::Empty,
        write_units = field::Empty,
    );
    let result = limiter.store().acquire(request, limiter.clock()).instrument(span.clone()).await;
    record(&span, &result);
    result
}

fn record(span: &Span, result: &Result<Grant, AcquireError>) {
    if span.is_disabled() {
        return;
    }
    match result {
        Ok(grant) => {
            span.record("path", grant.path.as_str());
            span.record("attempts", grant.attempts);
            span.record("write_units", grant.write_units);
            span.record("limited", false);
        }
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

/// Acquires now or, in its turn, when the tokens are there.
pub(super) async fn wait_for<S: Store, C: Clock>(
    limiter: &Limiter<S, C>,
    request: &Request,
    wait: Duration,
) -> Result<Grant, AcquireError> {
    let clock = limiter.clock();
    let until_ms =
        clock.now().get().saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
    let bucket = BucketId { entity: request.entity.clone(), resource: request.resource.clone() };
    let queue = limiter.queues().of(&bucket);
    if queue.is_empty() {
        match attempt(limiter, request).await {
            Err(AcquireError::LimitExceeded(exceeded)) if comes_by(clock, &exceeded, until_ms) => {}
            result => return result,
        }
    }
    let place = queue.join();
    // Nobody who is ahead waits longer than its own time, but that may be longer than this one's.
    let Some(_turn) = within(clock, until_ms, place.turn()).await else {
        return attempt(limiter, request).await;
    };
    loop {
        match attempt(limiter, request).await {
            Err(AcquireError::LimitExceeded(exceeded)) if comes_by(clock, &exceeded, until_ms) => {
                clock.sleep(exceeded.retry_after.unwrap_or_default()).await;
            }
            result => return result,
        }
    }
}

fn comes_by(clock: &impl Clock, exceeded: &LimitExceeded, until_ms: i64) -> bool {
    let left = u128::try_from(until_ms.saturating_sub(clock.now().get())).unwrap_or(0);
    exceeded.retry_after.is_some_and(|after| after.as_millis() <= left)
}

async fn within<T>(clock: &impl Clock, until_ms: i64, turn: impl Future<Output = T>) -> Option<T> {
    let left = u64::try_from(until_ms.saturating_sub(clock.now().get())).unwrap_or(0);
    match select(std::pin::pin!(turn), clock.sleep(Duration::from_millis(left))).await {
        Either::Left((turn, _)) => Some(turn),
        Either::Right(_) => None,
    }
}
