//! The expiry of a bucket: DynamoDB may delete it once a new bucket would give the same balances.

use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::{CompositeBucket, EpochMillis, LimitBalance, Rule};

/// The margin of every expiry, in milliseconds: clocks differ and writes take time.
const MARGIN_MS: i128 = 60_000;

/// Milliseconds after `since` until the refill of a limit with this balance is `times` what the
/// balance lacks; `None`: it never is. A calendar limit is refilled at whole boundaries.
fn fills_in_ms(rule: Rule, tokens: i64, since: EpochMillis, times: u8) -> Option<i128> {
    let (refill, tokens) = (rule.refill(), i128::from(tokens));
    let missing = i128::from(rule.burst().get()) - tokens;
    if missing <= 0 {
        return Some(0);
    }
    let amount = i128::from(refill.amount().get());
    if amount == 0 {
        return None;
    }
    if let Some(at) = refill.calendar() {
        let boundaries = refill.boundaries_for(tokens, missing).saturating_mul(times.into());
        return Some(at.after(since, boundaries) - i128::from(since.get()));
    }
    let scaled = missing * i128::from(refill.period_ms());
    Some((scaled / amount + i128::from(scaled % amount != 0)) * i128::from(times))
}

/// Expiry in epoch seconds of an item with these balances: after twice the longest time that any of
/// them takes to fill, from empty or from its debt, and a minute. `None`: some balance never fills.
pub(crate) fn expiry_s<'a>(
    balances: impl IntoIterator<Item = &'a LimitBalance>,
    now: EpochMillis,
) -> Option<i64> {
    let mut longest = 0;
    for balance in balances {
        longest = fills_in_ms(balance.rule, balance.tokens.get().min(0), now, 2)?.max(longest);
    }
    Some(seconds(i128::from(now.get()) + MARGIN_MS + longest))
}

/// The lowest balance that is full by the expiry of a balance of `tokens` ([`expiry_s`], without
/// its margin).
pub(crate) fn least_for_expiry(rule: Rule, tokens: i128) -> i128 {
    2 * tokens.min(0) - i128::from(rule.burst().get())
}

/// The expiry that the item needs if it would expire before it is full: a debt was added after its
/// expiry was set.
fn later_expiry_s(image: &CompositeBucket, now: EpochMillis) -> Option<i64> {
    let expires_at_s = image.expires_at_s?;
    let fills = |balance: &LimitBalance| {
        fills_in_ms(balance.rule, balance.tokens.get(), image.refilled_at, 1)
    };
    let mut full_in = 0;
    for balance in image.limits.values() {
        full_in = fills(balance)?.max(full_in);
    }
    let full_at = i128::from(image.refilled_at.get()) + full_in;
    if i128::from(expires_at_s) * 1_000 >= full_at {
        return None;
    }
    // No expiry is later than the end of the year 9999, so this one may equal the item's own.
    expiry_s(image.limits.values(), now).filter(|later| *later > expires_at_s)
}

/// Moves the expiry of an item that would be deleted before it is full: a debt was added after the
/// expiry was set. `None`: there is no expiry, some balance never fills, or the expiry is late
/// enough or cannot be later.
#[must_use]
pub fn extend(image: &CompositeBucket, now: EpochMillis) -> Option<WritePlan> {
    let expires_at_s = later_expiry_s(image, now)?;
    Some(WritePlan {
        path: WritePath::AddOnly,
        changes: vec![Change::ExpiresAt(Some(expires_at_s))],
        conditions: vec![Condition::ExpiresBefore(expires_at_s)],
    })
}

fn seconds(millis: i128) -> i64 {
    let capped = millis.min(EpochMillis::MAX.get().into());
    i64::try_from((capped + 999) / 1_000).unwrap_or(EpochMillis::MAX.get() / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, milli, rule};
    use crate::{Millitokens, Refill};

    fn balance(tokens: i64, burst: i64, amount: i64, period_ms: i64) -> LimitBalance {
        let rule = rule(burst, amount, period_ms);
        LimitBalance { rule, tokens: milli(tokens), consumed: milli(0).into() }
    }

    #[test]
    fn an_item_outlives_the_time_that_its_slowest_limit_needs_to_fill() {
        let now = at(1_000_000_000_000);
        let minute = balance(50_000, 60_000, 60_000, 60_000);
        let day = balance(0, 1_000, 1_000, 86_400_000);
        assert_eq!(expiry_s([&minute], now), Some(1_000_000_000 + 60 + 120));
        assert_eq!(expiry_s([&minute, &day], now), Some(1_000_000_000 + 60 + 2 * 86_400));
        // A debt of three bursts takes four times as long.
        let debt = balance(-180_000, 60_000, 60_000, 60_000);
        assert_eq!(expiry_s([&debt], now), Some(1_000_000_000 + 60 + 480));
        let quota = balance(5, 10, 0, 1_000);
        assert_eq!(expiry_s([&minute, &quota], now), None);
    }

    #[test]
    fn the_ends_of_every_range_do_not_overflow() {
        let slow =
            balance(Millitokens::MIN.get(), Millitokens::MAX.get(), 1, Refill::MAX_PERIOD_MS);
        assert_eq!(expiry_s([&slow], EpochMillis::MAX), Some(253_402_300_800));
    }
}
