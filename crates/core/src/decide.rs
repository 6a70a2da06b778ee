//! What to do with a request for tokens, given what is known of the bucket.
//!
//! The decision is a pure function of the newest image, the request and the time. Whatever it
//! decides is safe on an image that is out of date: every plan carries the conditions under which
//! its arithmetic is right, and a write that fails hands back the image for the next decision.

use std::collections::BTreeMap;

use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::{Bucket, CompositeBucket, EpochMillis, LimitName, Millitokens, Wait};

/// Tokens asked of the limits of one bucket, all or nothing; every amount is positive.
pub type Asked = BTreeMap<LimitName, Millitokens>;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Write this.
    Write(WritePlan),
    /// Say no: these limits are short.
    Short(BTreeMap<LimitName, Wait>),
}

/// How long a claim serves the writers behind it, in milliseconds: a bucket that somebody refilled
/// this recently is consumed from without another claim. DESIGN's `Q`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimInterval(pub u32);

impl Default for ClaimInterval {
    /// 100 ms.
    fn default() -> Self {
        Self(100)
    }
}

/// Decides on an acquire from the image of an item that has every limit asked for.
#[must_use]
pub fn decide(
    image: &CompositeBucket,
    asked: &Asked,
    now: EpochMillis,
    interval: ClaimInterval,
) -> Decision {
    let waits = shortages(image, asked, now);
    if !waits.is_empty() {
        return Decision::Short(waits);
    }
    let plan = retry(image, asked, now, interval);
    Decision::Write(plan.unwrap_or_else(|| normal(image, asked, now, interval)))
}

/// The limits that cannot give what is asked at `now`, and how long until they can.
fn shortages(
    image: &CompositeBucket,
    asked: &Asked,
    now: EpochMillis,
) -> BTreeMap<LimitName, Wait> {
    let wait = |limit, amount: &Millitokens| {
        let bucket: &Bucket = image.limits.get(limit)?;
        let wait = bucket.rule.wait_for(*amount, bucket.tokens, image.refilled_at, now);
        (wait != Wait::None).then(|| (LimitName::clone(limit), wait))
    };
    asked.iter().filter_map(|(limit, amount)| wait(limit, amount)).collect()
}

/// Consumes without a claim, if the image says that somebody claimed within the interval and that
/// every balance is enough without what accrued since.
fn retry(
    image: &CompositeBucket,
    asked: &Asked,
    now: EpochMillis,
    interval: ClaimInterval,
) -> Option<WritePlan> {
    let since = before(now, interval).max(image.refilled_at);
    let mut plan = WritePlan {
        path: WritePath::Retry,
        changes: Vec::with_capacity(asked.len()),
        conditions: vec![
            Condition::RefilledSince(since),
            Condition::RulesHash(image.rules_hash.clone()),
        ],
    };
    for (limit, amount) in asked {
        let bucket = image.limits.get(limit)?;
        // Full meanwhile: what accrued since the claim would be granted twice, by this write that
        // makes room for it and by the next claim.
        let unclaimed = saturating(bucket.rule.refill().gap(since, now));
        let ceiling = bucket.rule.burst().get() - unclaimed;
        plan.conditions.push(Condition::AtLeast(limit.clone(), amount.get()));
        plan.conditions.push(Condition::AtMost(limit.clone(), ceiling));
        plan.changes.push(Change::Add {
            limit: limit.clone(),
            tokens: -amount.get(),
            consumed: amount.get(),
        });
    }
    plan.conditions.iter().all(|condition| condition.holds(Some(image))).then_some(plan)
}

/// Claims the refill of every limit up to now and consumes.
fn normal(
    image: &CompositeBucket,
    asked: &Asked,
    now: EpochMillis,
    interval: ClaimInterval,
) -> WritePlan {
    let now = now.max(image.refilled_at);
    let mut plan = WritePlan {
        path: WritePath::Normal,
        changes: vec![Change::RefilledAt(now)],
        conditions: vec![
            Condition::RefilledAt(image.refilled_at),
            Condition::RulesHash(image.rules_hash.clone()),
        ],
    };
    for (limit, bucket) in &image.limits {
        let amount = asked.get(limit).copied().unwrap_or(Millitokens::ZERO);
        let claim = Claim::of(bucket, amount, image.refilled_at, now, interval);
        if amount > Millitokens::ZERO {
            // The lock is not enough: Retry and Adjust change the balance and leave the timestamp.
            plan.conditions.push(Condition::AtLeast(limit.clone(), amount.get() - claim.tokens));
        }
        plan.conditions.push(if claim.is_whole {
            Condition::AtMost(limit.clone(), bucket.rule.burst().get() - claim.tokens)
        } else {
            Condition::Exactly(limit.clone(), bucket.tokens)
        });
        plan.changes.push(Change::Add {
            limit: limit.clone(),
            tokens: claim.tokens - amount.get(),
            consumed: amount.get(),
        });
    }
    plan
}

/// What a claim adds to one balance.
struct Claim {
    tokens: i64,
    /// False when the cap cut it.
    is_whole: bool,
}

impl Claim {
    fn of(
        bucket: &Bucket,
        amount: Millitokens,
        refilled_at: EpochMillis,
        now: EpochMillis,
        interval: ClaimInterval,
    ) -> Self {
        let (tokens, burst) = (bucket.tokens.get(), bucket.rule.burst().get());
        let refill = bucket.rule.refill();
        let gap = saturating(refill.gap(refilled_at, now));
        if tokens + gap <= burst {
            return Self { tokens: gap, is_whole: true };
        }
        // Room for what accrues in the next interval, so that its writers need no claim of their
        // own; a request for the whole burst gets it.
        let accrues = saturating(refill.gap(before(now, interval), now));
        let headroom = (accrues - amount.get()).max(0).min(burst - amount.get()).max(0);
        Self { tokens: burst - headroom - tokens, is_whole: false }
    }
}

fn before(now: EpochMillis, interval: ClaimInterval) -> EpochMillis {
    EpochMillis::new(now.get() - i64::from(interval.0)).unwrap_or(EpochMillis::MIN)
}

/// Accruals beyond any burst need not be exact.
fn saturating(milli: i128) -> i64 {
    Millitokens::saturating(milli).get()
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
