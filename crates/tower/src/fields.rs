//! The rate limit fields of a response: structured fields (RFC 9651), one member for each limit.
//!
//! A limit's name consists of ASCII letters, digits, `_`, `-` and `.`, so a name in quotes is a
//! valid string of a structured field. The fields contain only such names and numbers.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use sluicegate::types::{EpochMillis, LimitName, Millitokens, Rule, Wait};
use sluicegate::{EntityId, LimitStatus};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");
/// Most members of a field are no longer than this.
const MEMBER_BYTES: usize = 48;
/// The largest integer of a structured field has 15 digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// The rate limit fields for the balances `remaining` of a granted request of `entity`, as the layer
/// adds them to a response.
#[must_use]
pub fn headers_of_grant(remaining: &[LimitStatus], entity: &str, now: EpochMillis) -> HeaderMap {
    let mut headers = HeaderMap::new();
    Fields::new(remaining, entity, now, None).append_to(&mut headers);
    headers
}

/// The fields of one response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    policy: String,
    left: String,
}

impl Fields {
    /// The fields for the status `limits` of a request of `entity`. A refused one is to be repeated
    /// after `retry_after_s`.
    pub(crate) fn new(
        limits: &[LimitStatus],
        entity: &str,
        now: EpochMillis,
        retry_after_s: Option<u64>,
    ) -> Self {
        let room = limits.len() * MEMBER_BYTES;
        let mut fields =
            Self { policy: String::with_capacity(room), left: String::with_capacity(room) };
        for LimitStatus { entity: whose, limit, rule, available, wait, .. } in limits {
            // `Retry-After` must not be earlier than any `t` (section 6 of the draft).
            let reset_s = match wait {
                Wait::Millis(millis) => Some(whole_seconds(*millis)),
                Wait::None | Wait::NoRefill | Wait::ExceedsBurst => {
                    full_in_s(*rule, *available, now)
                        .map(|full| retry_after_s.map_or(full, |after| full.min(after)))
                }
            };
            fields.push(prefix(whose, entity), limit, *rule, *available, reset_s);
        }
        fields
    }

    fn push(
        &mut self,
        prefix: &str,
        limit: &LimitName,
        rule: Rule,
        available: Millitokens,
        reset_s: Option<u64>,
    ) {
        for field in [&mut self.policy, &mut self.left] {
            let comma = if field.is_empty() { "" } else { ", " };
            field.extend([comma, "\"", prefix, limit.as_str(), "\""]);
        }
        let mut digits = itoa::Buffer::new();
        self.policy.extend([";q=", digits.format(whole_tokens(rule.burst()))]);
        if let Some(seconds) = period_s(rule) {
            self.policy.extend([";w=", digits.format(seconds)]);
        }
        self.left.extend([";r=", digits.format(whole_tokens(available))]);
        if let Some(seconds) = reset_s {
            self.left.extend([";t=", digits.format(seconds)]);
        }
    }

    /// Appends the fields; a list may go over several lines, so another layer's members stay.
    pub(crate) fn append_to(self, headers: &mut HeaderMap) {
        for (name, field) in [(POLICY, self.policy), (LEFT, self.left)] {
            if let (false, Ok(value)) = (field.is_empty(), HeaderValue::try_from(field)) {
                headers.append(name, value);
            }
        }
    }
}

/// The name of a limit as the client sees it. It does not name the parent.
pub(crate) fn policy(whose: &EntityId, limit: &LimitName, entity: &str) -> String {
    format!("{}{limit}", prefix(whose, entity))
}

fn prefix(whose: &EntityId, entity: &str) -> &'static str {
    if whose.as_str() == entity { "" } else { "parent:" }
}

/// Rounded up, so that waiting this long suffices; capped at the largest structured integer.
pub(crate) fn whole_seconds(millis: u64) -> u64 {
    millis.div_ceil(1_000).min(INTEGER_MAX)
}

fn whole_tokens(amount: Millitokens) -> u64 {
    (u64::try_from(amount.get()).unwrap_or(0) / 1_000).min(INTEGER_MAX)
}

/// The time window of a policy; `None` for a quota and for a calendar, whose periods have no one length.
fn period_s(rule: Rule) -> Option<u64> {
    let period_ms = u64::try_from(rule.refill().period_ms()).ok()?;
    let refills = rule.refill().even_amount() > Millitokens::ZERO;
    (refills && period_ms.is_multiple_of(1_000)).then_some(period_ms / 1_000)
}

fn full_in_s(rule: Rule, available: Millitokens, now: EpochMillis) -> Option<u64> {
    match rule.wait_for(rule.burst(), available, now, now) {
        Wait::None if rule.refill().amount() > Millitokens::ZERO => Some(0),
        Wait::Millis(millis) => Some(whole_seconds(millis)),
        Wait::None | Wait::NoRefill | Wait::ExceedsBurst => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate::Limit;
    use sluicegate::types::MillitokenSum;
    use std::time::Duration;

    const NOW: i64 = 1_769_608_800_000;

    fn fields(limit: &Limit, available_milli: i64) -> [String; 2] {
        let (limit, rule) = limit.check().unwrap();
        let remaining = [LimitStatus {
            entity: EntityId::new("u").unwrap(),
            limit,
            rule,
            asked: Millitokens::ZERO,
            available: Millitokens::new(available_milli).unwrap(),
            wait: Wait::None,
            consumed: MillitokenSum::default(),
        }];
        let fields = Fields::new(&remaining, "u", EpochMillis::new(NOW).unwrap(), None);
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
            // NOW is 2026-01-28T14:00:00Z: three days and ten hours before February.
            (&Limit::per_month("usd", 5), 0, [r#""usd";q=5"#, r#""usd";r=0;t=295200"#]),
            (&Limit::quota("usd", 5), 5_000, [r#""usd";q=5"#, r#""usd";r=5"#]),
            (
                &Limit::per_second("most", 1_000_000_000_000_000),
                1_000_000_000_000_000_000,
                [r#""most";q=999999999999999;w=1"#, r#""most";r=999999999999999;t=0"#],
            ),
            // The slowest refill of the most: 10^30 milliseconds.
            (
                &Limit::every("slow", 1, Duration::from_secs(1_000_000_000))
                    .burst(1_000_000_000_000_000),
                0,
                [r#""slow";q=999999999999999;w=1000000000"#, r#""slow";r=0;t=999999999999999"#],
            ),
        ] {
            assert_eq!(fields(limit, available), expected);
        }
    }

    #[test]
    fn every_name_that_a_limit_can_have_is_a_string() {
        let longest = "x".repeat(64);
        for name in ["rpm.v2", "req-min", "_", "7", &longest] {
            let member = format!(r#""{name}";q=1;w=60"#);
            assert_eq!(fields(&Limit::per_minute(name, 1), 0)[0], member);
        }
        for name in ["a\"b", "a\\b", "a;b", "ä", "a\r\nb"] {
            assert!(Limit::per_minute(name, 1).check().is_err(), "{name:?}");
        }
    }
}
