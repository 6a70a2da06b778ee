//! Correcting the consumption of a bucket after the fact.
//!
//! A correction is never refused. One that takes needs the guards of an acquire all the same: an
//! unconditional ADD to a bucket that filled up meanwhile is forgiven by the refill of that time.
//! One that gives back needs none.

use crate::decide::new_item;
use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::standing::View;
use crate::take::{self, Debit, debit, normal, retry};
use crate::{
    Amounts, BucketId, ClaimInterval, CompositeBucket, Configuration, EpochMillis, LimitName,
    Millitokens, RefillHint, RequestId, expiry,
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
    pub hint: RefillHint,
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
    AlreadyApplied,
    /// No limit of the correction exists: there is nothing to correct.
    NoSuchLimits(Vec<LimitName>),
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
        return Adjustment::NoSuchLimits(dropped);
    }
    let Some(image) = image else {
        // Gone is expired, hence full.
        let plan =
            new_item(adjust.bucket, (&amounts, &amounts), adjust.configuration, adjust.id, now);
        return Adjustment::Write { plan, dropped };
    };
    if image.request_ids.contains(adjust.id) {
        return Adjustment::AlreadyApplied;
    }
    let takes = amounts.values().any(|amount| *amount > Millitokens::ZERO);
    let fitting = fitting(image, &amounts);
    let plan = if takes && adjust.force == Force::No {
        guarded(image, (&fitting, &amounts), adjust, now)
    } else {
        unguarded((&fitting, &amounts), adjust.id, &[])
    };
    Adjustment::Write { plan, dropped }
}

/// What of a correction moves the balances: each stays within the range of [`Millitokens`]. All of
/// it is counted.
fn fitting(image: &CompositeBucket, amounts: &Amounts) -> Amounts {
    let fit = |(limit, amount): (&LimitName, &Millitokens)| {
        let tokens = image.limits.get(limit).map_or(0, |bucket| bucket.tokens.get());
        let after = Millitokens::saturating(i128::from(tokens) - i128::from(amount.get()));
        let fitting = Millitokens::saturating(i128::from(tokens) - i128::from(after.get()));
        (limit.clone(), fitting)
    };
    amounts.iter().map(fit).collect()
}

/// The balance leaves room for what is taken, or given back where that is negative. The
/// condition also requires that the limit exists: an ADD to a missing limit would leave a partial bucket
/// that no path can use.
pub(crate) fn has_room(limit: &LimitName, amount: Millitokens) -> Condition {
    if amount > Millitokens::ZERO {
        Condition::AtLeast(limit.clone(), Millitokens::MIN.get() + amount.get())
    } else {
        Condition::AtMost(limit.clone(), Millitokens::MAX.get() + amount.get())
    }
}

/// As an acquire would take, whatever the balance; what is given back of other limits goes through
/// the cap.
fn guarded(
    image: &CompositeBucket,
    (amounts, counted): (&Amounts, &Amounts),
    adjust: Adjust<'_>,
    now: EpochMillis,
) -> WritePlan {
    let (mut debits, mut refunds) = (Amounts::new(), Amounts::new());
    for (limit, amount) in amounts {
        let of = if *amount > Millitokens::ZERO { &mut debits } else { &mut refunds };
        of.insert(limit.clone(), Millitokens::saturating(i128::from(amount.get()).abs()));
    }
    let take = Debit {
        amounts: &debits,
        returned: &refunds,
        counted,
        floors: &take::NOTHING,
        id: Some(adjust.id),
        fences: &[],
        interval: adjust.interval,
        expires: image.expires_at_s.is_some(),
    };
    let unchanged = Default::default();
    let view = View { image, differences: &unchanged, now };
    let mut plan = retry(&view, &take, adjust.hint).unwrap_or_else(|| normal(&view, &take));
    plan.conditions.extend(amounts.iter().map(|(limit, amount)| has_room(limit, *amount)));
    plan
}

/// Adds, on condition that there is something to add to.
pub(crate) fn unguarded(
    (amounts, counted): (&Amounts, &Amounts),
    id: &RequestId,
    fences: &[RequestId],
) -> WritePlan {
    let ids = || fences.iter().chain([id]).cloned();
    let mut plan = WritePlan {
        path: WritePath::Adjust,
        changes: ids().map(Change::Remember).collect(),
        conditions: ids().map(Condition::Unseen).collect(),
    };
    for (limit, amount) in amounts {
        plan.conditions.push(has_room(limit, *amount));
        plan.changes.push(debit(limit, 0, *amount, take::amount(counted, limit)));
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
