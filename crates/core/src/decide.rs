//! The decision on a request for tokens: [`assess`] compares an item with a request, and
//! [`take_from`] makes the plan.
//!
//! The write queue uses both for acquires and leases from an item. [`decide`] is the same decision
//! for one request alone; the buckets that a process keeps during an outage use it.
//!
//! Every function here is pure: its arguments are the newest image, the request and the time. An
//! image that is out of date is safe, because every plan carries the conditions under which its
//! arithmetic is right. A write that fails returns the image for the next decision.

use crate::configuration::Differences;
use crate::debit::{Debit, new_item, take_unclaimed, take_with_claim};
use crate::plan::WritePlan;
use crate::status::{LimitStatus, View};
use crate::{
    Acquire, Amounts, CompositeBucket, EpochMillis, LimitName, Millitokens, Wait,
    is_refill_time_ahead,
};

/// The decision on an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Write this, and the request is granted.
    Write(WritePlan),
    /// Write this and decide again. Either a clock that was ahead has stopped refill, or limits
    /// must be removed before others fit.
    Repair(WritePlan),
    /// The image remembers the request: it was granted.
    AlreadyApplied,
    /// Refuse: at least one of these limits is violated.
    Short(Vec<LimitStatus>),
    /// Neither the configuration nor the item has this limit.
    UnknownLimit(LimitName),
    /// The item lacks this limit and has no room for another.
    NoRoom(LimitName),
}

/// Decides on one acquire alone, from the newest image of the item; `None`: there is no item.
#[must_use]
pub fn decide(image: Option<&CompositeBucket>, acquire: Acquire<'_>, now: EpochMillis) -> Decision {
    if image.is_some_and(|image| image.request_ids.contains(acquire.id)) {
        return Decision::AlreadyApplied;
    }
    match assess(image, acquire, Amounts::EMPTY, now) {
        Assessment::Covered => {}
        Assessment::Short(limits) => return Decision::Short(limits),
        Assessment::Repair(plan) => return Decision::Repair(plan),
        Assessment::UnknownLimit(limit) => return Decision::UnknownLimit(limit),
        Assessment::NoRoom(limit) => return Decision::NoRoom(limit),
    }
    let Acquire { bucket, amounts, configuration, id, .. } = acquire;
    let Some(image) = image else {
        return Decision::Write(new_item(bucket, (amounts, amounts), configuration, id, now));
    };
    let debit = Debit {
        amounts,
        counted: amounts,
        must_cover: amounts,
        id: Some(id),
        ..Debit::claim_only(acquire)
    };
    Decision::Write(take_from(image, acquire, &debit, now))
}

/// The assessment of an item against the asked amounts.
pub(crate) enum Assessment {
    /// Every balance covers the asked amount.
    Covered,
    /// At least one of these is violated.
    Short(Vec<LimitStatus>),
    /// Write this and assess again.
    Repair(WritePlan),
    /// Neither the configuration nor the item knows this limit.
    UnknownLimit(LimitName),
    /// The item lacks this limit and has no room for another.
    NoRoom(LimitName),
}

/// Compares an item (`None`: there is none) with the asked amounts, as if `returned` had come back
/// before.
pub(crate) fn assess(
    image: Option<&CompositeBucket>,
    acquire: Acquire<'_>,
    returned: &Amounts,
    now: EpochMillis,
) -> Assessment {
    let Some(image) = image else { return assess_new(acquire) };
    let mut differences = acquire.configuration.compare(image);
    differences.drop_unasked_if_crowded(image, acquire.amounts);
    if differences.is_crowded(image) {
        return make_room(image, acquire, differences, now);
    }
    let view = View { image, differences: &differences, now };
    let mut limits = Vec::with_capacity(acquire.amounts.len());
    for (limit, amount) in acquire.amounts {
        match view.status(limit, *amount, returned) {
            Some(status) => limits.push(status),
            None => return Assessment::UnknownLimit(limit.clone()),
        }
    }
    if !limits.iter().any(LimitStatus::is_violated) {
        return Assessment::Covered;
    }
    let never = limits.iter().any(|limit| limit.wait == Wait::ExceedsBurst);
    match is_refill_time_ahead(image, now) && !never {
        true => Assessment::Repair(take_with_claim(&view, &Debit::claim_only(acquire))),
        false => Assessment::Short(limits),
    }
}

fn assess_new(acquire: Acquire<'_>) -> Assessment {
    let rules = acquire.configuration.rules();
    if let Some(limit) = acquire.amounts.keys().find(|limit| !rules.contains_key(*limit)) {
        return Assessment::UnknownLimit(limit.clone());
    }
    let entity = &acquire.bucket.entity;
    let full = |(limit, asked): (&LimitName, &Millitokens)| {
        LimitStatus::full(entity, limit, rules[limit], *asked)
    };
    let limits: Vec<_> = acquire.amounts.iter().map(full).collect();
    if limits.iter().any(LimitStatus::is_violated) {
        return Assessment::Short(limits);
    }
    Assessment::Covered
}

/// Takes a debit from an item. It needs no claim if the item follows the configuration, an earlier
/// write claimed a moment ago, and the balances suffice.
pub(crate) fn take_from(
    image: &CompositeBucket,
    acquire: Acquire<'_>,
    debit: &Debit<'_>,
    now: EpochMillis,
) -> WritePlan {
    let mut differences = acquire.configuration.compare(image);
    differences.drop_unasked_if_crowded(image, acquire.amounts);
    let view = View { image, differences: &differences, now };
    let needs_no_claim = differences.is_empty() && !is_refill_time_ahead(image, now);
    let unclaimed = if needs_no_claim { take_unclaimed(&view, debit, acquire.hint) } else { None };
    unclaimed.unwrap_or_else(|| take_with_claim(&view, debit))
}

/// The write that brings an item to the configuration for a request that is refused. It claims
/// refill and takes nothing.
///
/// `None`: the item follows the configuration. A limit that the item merely lacks is no reason for
/// a write, because it counts as full either way.
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
    differences.drop_unasked_if_crowded(image, acquire.amounts);
    if differences.is_crowded(image) {
        differences.missing.clear();
    }
    let view = View { image, differences: &differences, now };
    Some(take_with_claim(&view, &Debit::claim_only(acquire)))
}

/// Removes the limits that the configuration dropped, so that the asked ones may fit. If it dropped
/// none, there is no room.
fn make_room(
    image: &CompositeBucket,
    acquire: Acquire<'_>,
    mut differences: Differences,
    now: EpochMillis,
) -> Assessment {
    let missing = std::mem::take(&mut differences.missing);
    match missing.into_keys().next() {
        Some(limit) if differences.removed.is_empty() => Assessment::NoRoom(limit),
        _ => {
            let view = View { image, differences: &differences, now };
            Assessment::Repair(take_with_claim(&view, &Debit::claim_only(acquire)))
        }
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
