//! The status of a descriptor: its limit as Envoy names limits.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::google::protobuf::Duration;
use sluicegate::LimitStatus;
use sluicegate::types::{EpochMillis, Millitokens, Rule, Wait};

/// The status of a descriptor that consumes some limits of a bucket: that of the scarcest of them.
pub(super) fn status_of<'a>(
    limits: impl Iterator<Item = &'a LimitStatus>,
    now: EpochMillis,
) -> DescriptorStatus {
    let scarcest = limits.min_by_key(|limit| (!limit.is_violated(), share(limit)));
    scarcest.map_or_else(|| of_code(Code::Ok), |limit| status(limit, now))
}

/// The share of the burst that is left.
fn share(limit: &LimitStatus) -> i128 {
    i128::from(limit.available.get()) * 1_000_000 / i128::from(limit.rule.burst().get().max(1))
}

fn status(limit: &LimitStatus, now: EpochMillis) -> DescriptorStatus {
    let LimitStatus { limit: name, rule, available, wait, .. } = limit;
    let wait = match wait {
        Wait::None => rule.wait_for(rule.burst(), *available, now, now),
        wait => *wait,
    };
    let millis = match wait {
        Wait::None => Some(0),
        Wait::Millis(millis) => Some(millis),
        Wait::NoRefill | Wait::ExceedsBurst => None,
    };
    DescriptorStatus {
        code: code(limit.is_violated()).into(),
        current_limit: Some(RateLimit {
            name: name.to_string(),
            requests_per_unit: tokens(rule.burst()),
            unit: unit(*rule).into(),
        }),
        limit_remaining: tokens(*available),
        duration_until_reset: millis.map(duration),
        quota: None,
    }
}

/// A status without a limit.
pub(super) fn of_code(code: Code) -> DescriptorStatus {
    DescriptorStatus { code: code.into(), ..DescriptorStatus::default() }
}

pub(super) const fn code(is_over: bool) -> Code {
    if is_over { Code::OverLimit } else { Code::Ok }
}

fn duration(millis: u64) -> Duration {
    let nanos = i32::try_from(millis % 1_000 * 1_000_000).unwrap_or_default();
    Duration { seconds: i64::try_from(millis / 1_000).unwrap_or(i64::MAX), nanos }
}

/// Whole tokens, rounded down; none while there is a debt.
fn tokens(amount: Millitokens) -> u32 {
    u32::try_from((amount.get() / 1_000).max(0)).unwrap_or(u32::MAX)
}

/// The unit of time in which a limit refills; `Unknown` for any other time.
fn unit(rule: Rule) -> Unit {
    if let Some(at) = rule.refill().calendar() {
        return match at.calendar.unit() {
            "day" => Unit::Day,
            "week" => Unit::Week,
            "month" => Unit::Month,
            "year" => Unit::Year,
            _ => Unit::Unknown,
        };
    }
    match rule.refill().period_ms() {
        _ if rule.refill().even_amount() == Millitokens::ZERO => Unit::Unknown,
        1_000 => Unit::Second,
        60_000 => Unit::Minute,
        3_600_000 => Unit::Hour,
        86_400_000 => Unit::Day,
        _ => Unit::Unknown,
    }
}
