//! What to do with a request for tokens, given what is known of the bucket.
//!
//! The decision is a pure function of the newest image, the request and the time. Whatever it
//! decides is safe on an image that is out of date: every plan carries the conditions under which
//! its arithmetic is right, and a write that fails hands back the image for the next decision.

use std::collections::BTreeMap;

use crate::configuration::Differences;
use crate::lease::Settlement;
use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::standing::{Standing, View, full};
use crate::take::{Debit, NOTHING, amount, new_bucket, normal, retry};
use crate::{
    Amounts, Bucket, BucketId, ClaimInterval, CompositeBucket, Configuration, EpochMillis,
    LimitName, RequestId, RulesHash, Wait, expiry,
};

/// An `rf` this far ahead of the clock, in milliseconds, is an error of some clock.
const AHEAD_MS: i64 = 60_000;

/// A request for tokens of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct Acquire<'a> {
    /// Which bucket.
    pub bucket: &'a BucketId,
    /// How much, of at most [`LIMITS_MAX`](crate::LIMITS_MAX) limits; every amount is positive.
    pub amounts: &'a Amounts,
    /// What the limits should be.
    pub configuration: &'a Configuration,
    /// The id of the request, the same for all its attempts.
    pub id: &'a RequestId,
    /// How long a claim serves the writers behind it.
    pub interval: ClaimInterval,
    /// What to take for granted.
    pub hint: RefillHint,
}

/// What a decision takes for granted about writers that it has not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefillHint {
    /// The item is as the image shows it.
    TrustImage,
    /// Somebody claimed within the last interval, although the image does not show it yet: with
    /// many processes on one bucket every image is out of date, and a lock tied to it would make
    /// them lose to one another.
    AssumeRefilled,
    /// It is time for this writer to claim, although the last claim still serves: those behind it
    /// then need not wait for one. It does not where that would fill the bucket: writes under way
    /// know ceilings that only the last claim left room for, and all of them would be refused.
    RefillEarly,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Write this, and the request is granted.
    Write(WritePlan),
    /// Write this and decide again: a clock that was ahead has stopped refill, or limits must go
    /// before there is room for others.
    Repair(WritePlan),
    /// The image remembers the request: it was granted.
    AlreadyApplied,
    /// Say no: at least one of these has a wait.
    Short(Vec<Standing>),
    /// Nobody knows this limit: neither the configuration nor the item.
    Unknown(LimitName),
    /// The item lacks this limit and has no room for another.
    Full(LimitName),
}

/// Whether `rf` is so far ahead of this clock that some clock must be wrong.
#[must_use]
pub fn is_clock_ahead(image: &CompositeBucket, now: EpochMillis) -> bool {
    is_ahead(image.refilled_at, now)
}

pub(crate) fn is_ahead(refilled_at: EpochMillis, now: EpochMillis) -> bool {
    refilled_at.get() > now.get() + AHEAD_MS
}

/// Decides on an acquire from what is known of the item; `None`: there is none.
#[must_use]
pub fn decide(image: Option<&CompositeBucket>, acquire: Acquire<'_>, now: EpochMillis) -> Decision {
    decide_settling(image, acquire, None, now)
}

/// The same, in a write that also settles.
pub(crate) fn decide_settling(
    image: Option<&CompositeBucket>,
    acquire: Acquire<'_>,
    settlement: Option<&Settlement>,
    now: EpochMillis,
) -> Decision {
    let returned = settlement.map_or(&NOTHING, |settlement| &settlement.returned);
    let counted = settlement.map_or(acquire.amounts, |settlement| &settlement.counted);
    if image.is_some_and(|image| image.request_ids.contains(acquire.id)) {
        return Decision::AlreadyApplied;
    }
    match assess(image, acquire, returned, now) {
        Assessment::Covered => {}
        Assessment::Short(standings) => return Decision::Short(standings),
        Assessment::Repair(plan) => return Decision::Repair(plan),
        Assessment::Unknown(limit) => return Decision::Unknown(limit),
        Assessment::Full(limit) => return Decision::Full(limit),
    }
    let Acquire { bucket, amounts, configuration, id, .. } = acquire;
    let Some(image) = image else {
        return Decision::Write(new_item(bucket, (amounts, counted), configuration, id, now));
    };
    let take = Debit {
        amounts,
        returned,
        counted,
        floors: amounts,
        id: Some(id),
        ..Debit::nothing(acquire)
    };
    Decision::Write(take_from(image, acquire, &take, now))
}

/// How an item stands to what is asked of it.
pub(crate) enum Assessment {
    /// Every balance covers it.
    Covered,
    /// At least one of these has a wait.
    Short(Vec<Standing>),
    /// Write this and look again.
    Repair(WritePlan),
    /// Neither the configuration nor the item knows this limit.
    Unknown(LimitName),
    /// The item lacks this limit and has no room for another.
    Full(LimitName),
}

/// Looks whether an item covers what is asked, once some tokens are returned; `None`: there is no
/// item.
pub(crate) fn assess(
    image: Option<&CompositeBucket>,
    acquire: Acquire<'_>,
    returned: &Amounts,
    now: EpochMillis,
) -> Assessment {
    let Some(image) = image else { return assess_new(acquire) };
    let mut differences = acquire.configuration.compare(image);
    differences.fit(image, acquire.amounts);
    if differences.is_crowded(image) {
        return make_room(image, acquire, differences, now);
    }
    let view = View { image, differences: &differences, now };
    let mut standings = Vec::with_capacity(acquire.amounts.len());
    for (limit, amount) in acquire.amounts {
        match view.standing(limit, *amount, returned) {
            Some(standing) => standings.push(standing),
            None => return Assessment::Unknown(limit.clone()),
        }
    }
    if standings.iter().all(|standing| standing.wait == Wait::None) {
        return Assessment::Covered;
    }
    let never = standings.iter().any(|standing| standing.wait == Wait::ExceedsBurst);
    match is_clock_ahead(image, now) && !never {
        true => Assessment::Repair(normal(&view, &Debit::nothing(acquire))),
        false => Assessment::Short(standings),
    }
}

fn assess_new(acquire: Acquire<'_>) -> Assessment {
    let rules = acquire.configuration.rules();
    if let Some(limit) = acquire.amounts.keys().find(|limit| !rules.contains_key(*limit)) {
        return Assessment::Unknown(limit.clone());
    }
    let standings: Vec<_> =
        acquire.amounts.iter().map(|(limit, asked)| full(limit, rules[limit], *asked)).collect();
    if standings.iter().any(|standing| standing.wait != Wait::None) {
        return Assessment::Short(standings);
    }
    Assessment::Covered
}

/// Takes from an item what it covers, without a claim where somebody else claimed a moment ago.
pub(crate) fn take_from(
    image: &CompositeBucket,
    acquire: Acquire<'_>,
    take: &Debit<'_>,
    now: EpochMillis,
) -> WritePlan {
    let mut differences = acquire.configuration.compare(image);
    differences.fit(image, acquire.amounts);
    let view = View { image, differences: &differences, now };
    let mut asked = acquire.amounts.keys().filter_map(|limit| image.limits.get(limit));
    let claims_early = acquire.hint == RefillHint::RefillEarly
        && asked.all(|bucket| leaves_room(bucket, image, acquire.interval, now));
    let may_retry = differences.is_empty() && !is_clock_ahead(image, now) && !claims_early;
    let retry = if may_retry { retry(&view, take, acquire.hint) } else { None };
    retry.unwrap_or_else(|| normal(&view, take))
}

/// Brings an item to the configuration for a request that is refused: it claims refill and takes
/// nothing.
///
/// `None`: the item follows the configuration. A limit that the item merely lacks is no reason for a
/// write: it counts as full either way.
#[must_use]
pub fn reconfigure(
    image: &CompositeBucket,
    acquire: Acquire<'_>,
    now: EpochMillis,
) -> Option<WritePlan> {
    let mut differences = acquire.configuration.compare(image);
    if !differences.has_change() {
        return None;
    }
    differences.fit(image, acquire.amounts);
    if differences.is_crowded(image) {
        differences.missing.clear();
    }
    let view = View { image, differences: &differences, now };
    Some(normal(&view, &Debit::nothing(acquire)))
}

/// Whether a bucket has room for what accrues in an interval, after a claim of all refill up to now.
fn leaves_room(
    bucket: &Bucket,
    image: &CompositeBucket,
    interval: ClaimInterval,
    now: EpochMillis,
) -> bool {
    let refill = bucket.rule.refill();
    let claimed = i128::from(bucket.tokens.get()) + refill.gap(image.refilled_at, now);
    claimed + refill.gap(interval.before(now), now) <= bucket.rule.burst().get().into()
}

/// Removes what the configuration dropped, if anything, so that what is asked may fit.
fn make_room(
    image: &CompositeBucket,
    acquire: Acquire<'_>,
    mut differences: Differences,
    now: EpochMillis,
) -> Assessment {
    let missing = std::mem::take(&mut differences.missing);
    match missing.into_keys().next() {
        Some(limit) if differences.removed.is_empty() => Assessment::Full(limit),
        _ => {
            let view = View { image, differences: &differences, now };
            Assessment::Repair(normal(&view, &Debit::nothing(acquire)))
        }
    }
}

/// Puts a full bucket less what is taken at once; a refund leaves it full.
pub(crate) fn new_item(
    bucket: &BucketId,
    (amounts, counted): (&Amounts, &Amounts),
    configuration: &Configuration,
    id: &RequestId,
    now: EpochMillis,
) -> WritePlan {
    let rules = configuration.rules_with_room(amounts);
    let limits: BTreeMap<_, _> = rules
        .iter()
        .map(|(limit, rule)| {
            (limit.clone(), new_bucket(*rule, amount(amounts, limit), amount(counted, limit)))
        })
        .collect();
    let expires_at_s =
        expiry::expiry_s(limits.values(), now).filter(|_| !configuration.is_personal());
    let item = CompositeBucket {
        entity: bucket.entity.clone(),
        resource: bucket.resource.clone(),
        refilled_at: now,
        limits,
        expires_at_s,
        config_stamp: configuration.stamp(),
        rules_hash: Some(RulesHash::of(&rules)),
        request_ids: vec![id.clone()],
    };
    WritePlan {
        path: WritePath::Create,
        changes: vec![Change::Put(Box::new(item))],
        conditions: vec![Condition::Absent],
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
