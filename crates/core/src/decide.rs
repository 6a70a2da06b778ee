//! What to do with a request for tokens, given what is known of the bucket.
//!
//! The decision is a pure function of the newest image, the request and the time. Whatever it
//! decides is safe on an image that is out of date: every plan carries the conditions under which
//! its arithmetic is right, and a write that fails hands back the image for the next decision.

use crate::configuration::Differences;
use crate::debit::{Debit, NOTHING, new_item, normal, retry};
use crate::plan::WritePlan;
use crate::standing::{Standing, View, full};
use crate::{Acquire, Amounts, CompositeBucket, EpochMillis, LimitName, Wait, is_clock_ahead};

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

/// Decides on an acquire from what is known of the item; `None`: there is none.
#[must_use]
pub fn decide(image: Option<&CompositeBucket>, acquire: Acquire<'_>, now: EpochMillis) -> Decision {
    if image.is_some_and(|image| image.request_ids.contains(acquire.id)) {
        return Decision::AlreadyApplied;
    }
    match assess(image, acquire, &NOTHING, now) {
        Assessment::Covered => {}
        Assessment::Short(standings) => return Decision::Short(standings),
        Assessment::Repair(plan) => return Decision::Repair(plan),
        Assessment::Unknown(limit) => return Decision::Unknown(limit),
        Assessment::Full(limit) => return Decision::Full(limit),
    }
    let Acquire { bucket, amounts, configuration, id, .. } = acquire;
    let Some(image) = image else {
        return Decision::Write(new_item(bucket, (amounts, amounts), configuration, id, now));
    };
    let debit = Debit {
        amounts,
        counted: amounts,
        floors: amounts,
        id: Some(id),
        ..Debit::nothing(acquire)
    };
    Decision::Write(take_from(image, acquire, &debit, now))
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

/// Takes from an item what it covers, without a claim where another writer claimed a moment ago.
pub(crate) fn take_from(
    image: &CompositeBucket,
    acquire: Acquire<'_>,
    debit: &Debit<'_>,
    now: EpochMillis,
) -> WritePlan {
    let mut differences = acquire.configuration.compare(image);
    differences.fit(image, acquire.amounts);
    let view = View { image, differences: &differences, now };
    let may_retry = differences.is_empty() && !is_clock_ahead(image, now);
    let retry = if may_retry { retry(&view, debit, acquire.hint) } else { None };
    retry.unwrap_or_else(|| normal(&view, debit))
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

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
