//! Correcting the consumption of a bucket after the fact.
//!
//! A correction is never refused. One that takes needs the guards of an acquire all the same: an
//! unconditional ADD to a bucket that filled up meanwhile is forgiven by the refill of that time.
//! One that gives back needs none.

use crate::decide::new_item;
use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::standing::View;
use crate::take::{NOTHING, Take, normal, retry, taken};
use crate::{
    Amounts, BucketId, ClaimInterval, CompositeBucket, Configuration, EpochMillis, LimitName,
    Millitokens, Presume, RequestId, expiry,
};

/// A correction of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct Adjust<'a> {
    /// Which bucket.
    pub bucket: &'a BucketId,
    /// What to add to the consumption of each limit; negative amounts give tokens back.
    pub amounts: &'a Amounts,
    /// The limits as the lease knew them, for an item that expired meanwhile.
    pub configuration: &'a Configuration,
    /// The id of the correction, the same for all its attempts.
    pub id: &'a RequestId,
    /// How long a claim serves the writers behind it.
    pub interval: ClaimInterval,
    /// What to take for granted.
    pub presume: Presume,
    /// Whether to give up the guards: the last resort of a correction that lost to others until its
    /// time was up.
    pub force: Force,
}

/// Whether a correction keeps its guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// It does: exact, and may lose to other writers.
    No,
    /// It does not: it lands, and what it takes from a bucket that is full by now may be forgiven.
    Yes,
}

/// What to do about a correction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adjustment {
    /// Write this.
    Write {
        /// The write.
        plan: WritePlan,
        /// Limits that the item no longer has: what concerns them is dropped.
        dropped: Vec<LimitName>,
    },
    /// The image remembers the correction.
    Landed,
    /// No limit of the correction exists: there is nothing to correct.
    Gone(Vec<LimitName>),
}

/// Decides on a correction from what is known of the item; `None`: there is none.
#[must_use]
pub fn adjust(image: Option<&CompositeBucket>, adjust: Adjust<'_>, now: EpochMillis) -> Adjustment {
    let has = |limit: &LimitName| match image {
        Some(image) => image.limits.contains_key(limit),
        None => adjust.configuration.rule(limit).is_some(),
    };
    let dropped: Vec<_> = adjust.amounts.keys().filter(|limit| !has(limit)).cloned().collect();
    let amounts: Amounts = adjust
        .amounts
        .iter()
        .filter(|(limit, _)| has(limit))
        .map(|(limit, amount)| (limit.clone(), *amount))
        .collect();
    if amounts.is_empty() {
        return Adjustment::Gone(dropped);
    }
    let Some(image) = image else {
        // Gone is expired, hence full.
        let plan =
            new_item(adjust.bucket, (&amounts, &amounts), adjust.configuration, adjust.id, now);
        return Adjustment::Write { plan, dropped };
    };
    if image.request_ids.contains(adjust.id) {
        return Adjustment::Landed;
    }
    let takes = amounts.values().any(|amount| *amount > Millitokens::ZERO);
    let plan = if takes && adjust.force == Force::No {
        guarded(image, &amounts, adjust, now)
    } else {
        unguarded(&amounts, adjust.id)
    };
    Adjustment::Write { plan, dropped }
}

/// As an acquire would take, whatever the balance.
fn guarded(
    image: &CompositeBucket,
    amounts: &Amounts,
    adjust: Adjust<'_>,
    now: EpochMillis,
) -> WritePlan {
    let take = Take {
        amounts,
        returned: &NOTHING,
        counted: amounts,
        floors: false,
        id: Some(adjust.id),
        interval: adjust.interval,
        expires: image.expires_at_s.is_some(),
    };
    let unchanged = Default::default();
    let view = View { image, differences: &unchanged, now };
    let mut plan = retry(&view, &take, adjust.presume).unwrap_or_else(|| normal(&view, &take));
    // An ADD to what is not there would leave a stump that no path can use.
    plan.conditions.extend(amounts.keys().cloned().map(Condition::Has));
    plan
}

/// Adds, on condition that there is something to add to.
fn unguarded(amounts: &Amounts, id: &RequestId) -> WritePlan {
    let mut plan = WritePlan {
        path: WritePath::Adjust,
        changes: vec![Change::Remember(id.clone())],
        conditions: vec![Condition::Unseen(id.clone())],
    };
    for (limit, amount) in amounts {
        plan.conditions.push(Condition::Has(limit.clone()));
        plan.changes.push(taken(limit, 0, *amount, *amount));
    }
    plan
}

/// Moves the expiry of an item that would be deleted before it is full: a debt came after the
/// expiry was set. `None` when it needs none.
#[must_use]
pub fn extend(image: &CompositeBucket, now: EpochMillis) -> Option<WritePlan> {
    let expires_at_s = expiry::later_expiry_s(image, now)?;
    Some(WritePlan {
        path: WritePath::Adjust,
        changes: vec![Change::ExpiresAt(Some(expires_at_s))],
        conditions: vec![Condition::ExpiresBefore(expires_at_s)],
    })
}

#[cfg(test)]
#[path = "adjust_tests.rs"]
mod tests;
