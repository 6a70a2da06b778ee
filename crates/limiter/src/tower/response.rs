//! What the client is told: the fields of every answer, and the problem of a refusal.
//!
//! Limit names are letters, digits, `_`, `-` and `.` only, so nothing here is ever escaped; and
//! nothing but limit names and figures gets in.

use std::error::Error;
use std::fmt::Write;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use sluicegate_core::{EntityId, EpochMillis, LimitName, Millitokens, Rule, Wait};

use crate::error::{AcquireError, LimitStatus};
use crate::lease::Remaining;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// The problem type of the draft, for quotas that are exceeded.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The largest integer of a structured field has 15 digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// The fields of one answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    policy: String,
    left: String,
}

impl Fields {
    /// What `remaining` says of a request of `entity`.
    pub(super) fn left(remaining: &[Remaining], entity: &str, now: EpochMillis) -> Self {
        let mut fields = Self::default();
        for Remaining { entity: whose, limit, rule, available, .. } in remaining {
            fields.push(&policy(whose, limit, entity), *rule, *available, now);
        }
        fields
    }

    fn of_refusal(limits: &[LimitStatus], entity: &str, now: EpochMillis) -> Self {
        let mut fields = Self::default();
        for LimitStatus { entity: whose, limit, rule, available, .. } in limits {
            fields.push(&policy(whose, limit, entity), *rule, *available, now);
        }
        fields
    }

    fn push(&mut self, name: &str, rule: Rule, available: Millitokens, now: EpochMillis) {
        for field in [&mut self.policy, &mut self.left] {
            let comma = if field.is_empty() { "" } else { ", " };
            let _ = write!(field, "{comma}\"{name}\"");
        }
        let _ = write!(self.policy, ";q={}", whole_tokens(rule.burst()));
        if let Some(seconds) = period_s(rule) {
            let _ = write!(self.policy, ";w={seconds}");
        }
        let _ = write!(self.left, ";r={}", whole_tokens(available));
        if let Some(seconds) = full_in_s(rule, available, now) {
            let _ = write!(self.left, ";t={seconds}");
        }
    }

    /// Appended, for a list may go over several lines: another layer's members stay.
    pub(super) fn append_to(self, headers: &mut HeaderMap) {
        for (name, field) in [(POLICY, self.policy), (LEFT, self.left)] {
            if let (false, Ok(value)) = (field.is_empty(), HeaderValue::try_from(field)) {
                headers.append(name, value);
            }
        }
    }
}

/// The answer to a request that was not granted.
pub(super) fn refusal<B: From<String>>(
    error: &AcquireError,
    entity: &str,
    now: EpochMillis,
) -> Response<B> {
    let cause: &(dyn Error + 'static) = error;
    let (status, limits) = match error {
        AcquireError::LimitExceeded(exceeded) => {
            tracing::debug!(entity, error = cause, "answered 429");
            (StatusCode::TOO_MANY_REQUESTS, &*exceeded.limits)
        }
        AcquireError::NeverAdmissible(never) => {
            tracing::debug!(entity, error = cause, "answered 400");
            (StatusCode::BAD_REQUEST, &*never.limits)
        }
        AcquireError::Contended { .. } | AcquireError::Unavailable(_) => {
            tracing::warn!(entity, error = cause, "answered 503");
            (StatusCode::SERVICE_UNAVAILABLE, &[][..])
        }
        AcquireError::InvalidRequest(_) | AcquireError::Setup(_) => {
            tracing::error!(entity, error = cause, "answered 500");
            (StatusCode::INTERNAL_SERVER_ERROR, &[][..])
        }
    };
    let is_violated = |limit: &&LimitStatus| match status {
        StatusCode::BAD_REQUEST => limit.wait == Wait::ExceedsBurst,
        _ => limit.is_violated(),
    };
    let name = |limit: &LimitStatus| policy(&limit.entity, &limit.limit, entity);
    let violated: Vec<_> = limits.iter().filter(is_violated).map(name).collect();
    let mut response = Response::new(B::from(problem(status, &violated)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, PROBLEM);
    if let AcquireError::LimitExceeded(exceeded) = error
        && let Some(after) = exceeded.retry_after
    {
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        headers.insert(RETRY_AFTER, seconds.into());
    }
    Fields::of_refusal(limits, entity, now).append_to(headers);
    response
}

/// A problem without a type of its own has the title of its status (RFC 9457, 4.2.1).
fn problem(status: StatusCode, violated: &[String]) -> String {
    let (kind, title, detail) = match status {
        StatusCode::TOO_MANY_REQUESTS => (
            QUOTA_EXCEEDED,
            "Request cannot be satisfied as assigned quota has been exceeded",
            "wait as long as Retry-After says; without it, the quota does not refill",
        ),
        StatusCode::BAD_REQUEST => (
            "about:blank",
            "Bad Request",
            "more is asked than the limit ever grants at once: ask for less",
        ),
        StatusCode::SERVICE_UNAVAILABLE => (
            "about:blank",
            "Service Unavailable",
            "the rate limit cannot be checked at the moment: ask again later",
        ),
        _ => ("about:blank", "Internal Server Error", "the rate limit cannot be checked"),
    };
    let code = status.as_u16();
    let mut problem =
        format!(r#"{{"type":"{kind}","title":"{title}","status":{code},"detail":"{detail}""#);
    if !violated.is_empty() {
        let _ = write!(problem, r#","violated-policies":["{}"]"#, violated.join("\",\""));
    }
    problem.push('}');
    problem
}

/// What a limit is called before the client. Whose parent is not told.
fn policy(whose: &EntityId, limit: &LimitName, entity: &str) -> String {
    let parent = if whose.as_str() == entity { "" } else { "parent:" };
    format!("{parent}{limit}")
}

fn whole_tokens(amount: Millitokens) -> u64 {
    (u64::try_from(amount.get()).unwrap_or(0) / 1_000).min(INTEGER_MAX)
}

fn period_s(rule: Rule) -> Option<u64> {
    let period_ms = u64::try_from(rule.refill().period_ms()).ok()?;
    let refills = rule.refill().amount() > Millitokens::ZERO;
    (refills && period_ms.is_multiple_of(1_000)).then_some(period_ms / 1_000)
}

fn full_in_s(rule: Rule, available: Millitokens, now: EpochMillis) -> Option<u64> {
    match rule.wait_for(rule.burst(), available, now, now) {
        Wait::None if rule.refill().amount() > Millitokens::ZERO => Some(0),
        Wait::Millis(millis) => Some(millis.div_ceil(1_000).min(INTEGER_MAX)),
        Wait::None | Wait::NoRefill | Wait::ExceedsBurst => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;
    use std::time::Duration;

    fn fields(limit: &Limit, available_milli: i64) -> [String; 2] {
        let (name, rule) = limit.check().unwrap();
        let mut fields = Fields::default();
        let now = EpochMillis::new(1_769_608_800_000).unwrap();
        fields.push(name.as_str(), rule, Millitokens::new(available_milli).unwrap(), now);
        [fields.policy, fields.left]
    }

    #[test]
    fn figures_are_whole_and_rounded_against_hope() {
        let rpm = Limit::per_minute("rpm", 100);
        let half = Limit::every("half", 1, Duration::from_millis(500)).burst(8);
        for (limit, available, expected) in [
            (&rpm, 50_000, [r#""rpm";q=100;w=60"#, r#""rpm";r=50;t=30"#]),
            (&rpm, 50_999, [r#""rpm";q=100;w=60"#, r#""rpm";r=50;t=30"#]),
            (&rpm, 99_999, [r#""rpm";q=100;w=60"#, r#""rpm";r=99;t=1"#]),
            (&rpm, 100_000, [r#""rpm";q=100;w=60"#, r#""rpm";r=100;t=0"#]),
            // A debt is earned back too.
            (&rpm, -100_000, [r#""rpm";q=100;w=60"#, r#""rpm";r=0;t=120"#]),
            (&half, 5_000, [r#""half";q=8"#, r#""half";r=5;t=2"#]),
            (&Limit::quota("usd", 5), 0, [r#""usd";q=5"#, r#""usd";r=0"#]),
            (&Limit::quota("usd", 5), 5_000, [r#""usd";q=5"#, r#""usd";r=5"#]),
            (
                &Limit::per_second("most", 1_000_000_000_000_000),
                1_000_000_000_000_000_000,
                [r#""most";q=999999999999999;w=1"#, r#""most";r=999999999999999;t=0"#],
            ),
        ] {
            assert_eq!(fields(limit, available), expected);
        }
    }
}
