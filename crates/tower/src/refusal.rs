//! The response to a request that was not granted.
//!
//! Neither the response nor its log line names the entity: that may be a credential.

use std::error::Error;

use http::header::RETRY_AFTER;
use http::{Response, StatusCode};
use sluicegate::types::{EpochMillis, Wait};
use sluicegate::{AcquireError, LimitStatus};

use crate::fields::{Fields, policy, whole_seconds};
use crate::problem::problem;

/// Other writers finish within milliseconds.
const CONTENDED_RETRY_S: u64 = 1;
/// When the table becomes available again, clients should not all return at once.
const UNAVAILABLE_RETRY_S: u64 = 5;

/// The parts of a response to an error.
struct Refusal<'a> {
    status: StatusCode,
    detail: &'static str,
    limits: &'a [LimitStatus],
    is_violated: fn(&LimitStatus) -> bool,
    retry_after_s: Option<u64>,
}

/// The response of the layer to an acquire of `entity` on `resource` that failed with `error`, and a
/// line in the log.
pub fn refusal(
    error: &AcquireError,
    entity: &str,
    resource: &str,
    now: EpochMillis,
) -> Response<String> {
    let Refusal { status, detail, limits, is_violated, retry_after_s } = Refusal::of(error);
    let violated: Vec<_> = limits
        .iter()
        .filter(|limit| is_violated(limit))
        .map(|limit| policy(&limit.entity, &limit.limit, entity))
        .collect();
    log(error, status, resource, &violated);

    let mut response = problem(status, Some(detail), &violated);
    let headers = response.headers_mut();
    if let Some(seconds) = retry_after_s {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    Fields::new(limits, entity, now, retry_after_s).append_to(headers);
    response
}

impl<'a> Refusal<'a> {
    fn of(error: &'a AcquireError) -> Self {
        match error {
            AcquireError::LimitExceeded(exceeded) => {
                let seconds = exceeded.retry_after.map(|after| {
                    whole_seconds(u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
                });
                let detail = match seconds {
                    Some(_) => "wait as long as Retry-After says",
                    None => "the quota is used up and does not refill",
                };
                Self {
                    limits: &exceeded.limits,
                    retry_after_s: seconds,
                    ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
                }
            }
            AcquireError::NeverAdmissible(never) => Self {
                limits: &never.limits,
                is_violated: |limit| limit.wait == Wait::ExceedsBurst,
                ..Self::new(
                    StatusCode::BAD_REQUEST,
                    "the request asks for more than the limit ever grants at once: ask for less",
                )
            },
            AcquireError::InvalidRequest(invalid) if invalid.is_of_client() => Self::new(
                StatusCode::BAD_REQUEST,
                "a name or an amount in the request is invalid: check the entity, the resource and the amounts",
            ),
            AcquireError::Contended { .. } => Self::unavailable(CONTENDED_RETRY_S),
            AcquireError::Unavailable(_) => Self::unavailable(UNAVAILABLE_RETRY_S),
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the rate limit cannot be checked"),
        }
    }

    fn new(status: StatusCode, detail: &'static str) -> Self {
        let is_violated = LimitStatus::is_violated;
        Self { status, detail, limits: &[], is_violated, retry_after_s: None }
    }

    fn unavailable(retry_after_s: u64) -> Self {
        let detail = "the rate limit cannot be checked at the moment, and tokens may have been taken: ask again later";
        let retry_after_s = Some(retry_after_s);
        Self { retry_after_s, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
    }
}

/// An error caused by the client or by a limit names the entity, so only its kind is logged.
fn log(error: &AcquireError, status: StatusCode, resource: &str, violated: &[String]) {
    let cause: &(dyn Error + 'static) = error;
    let status = status.as_u16();
    match status {
        503 => tracing::warn!(status, resource, error = cause, "refused"),
        500 => tracing::error!(status, resource, error = cause, "refused"),
        _ => tracing::debug!(status, resource, ?violated, "refused"),
    }
}
