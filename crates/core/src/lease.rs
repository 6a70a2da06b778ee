//! Taking tokens ahead of need, and giving back those that nobody needed, in one write.
//!
//! A process that leases is a process that acquires more than it was asked for and hands it out
//! itself. So a lease is an acquire, with all its conditions; what comes back with it goes through
//! the cap as a refill claim does, so that what no longer fits is lost and never spent twice. What
//! is counted as consumed is told apart from what is taken: it may be either what was leased or what
//! was handed out.

use std::collections::BTreeMap;

use crate::adjust::{Adjustment, has_room};
use crate::decide::{Acquire, Decision, decide_settling, new_item};
use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::standing::{View, standings_after};
use crate::take::amount;
use crate::{
    Amounts, BucketId, CompositeBucket, Configuration, EpochMillis, LimitName, Millitokens,
    RequestId, Wait,
};

/// A lease takes one part in so many of what is there, and at least what is needed now: others on
/// the bucket find something, too, and those that ask for the same come to the same share.
const SHARE: i64 = 4;

/// What a write settles besides what it takes. An empty one settles nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Settlement {
    /// Tokens that were leased and not handed out; every amount is positive.
    pub returned: Amounts,
    /// What to add to the consumption of each limit.
    pub counted: Amounts,
}

/// How much of a limit a lease should take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseRange {
    /// Without this the lease is short.
    pub least: Millitokens,
    /// More than this is of no use.
    pub most: Millitokens,
}

/// How much of each limit to lease: what is wanted, as far as the bucket can spare it. `None`: there
/// is no item. Limits that nobody knows come to their least.
#[must_use]
pub fn lease_size(
    image: Option<&CompositeBucket>,
    wanted: &BTreeMap<LimitName, LeaseRange>,
    returned: &Amounts,
    configuration: &Configuration,
    now: EpochMillis,
) -> Amounts {
    let mut sizes: Amounts =
        wanted.iter().map(|(limit, want)| (limit.clone(), want.least)).collect();
    for standing in standings_after(image, &sizes.clone(), returned, configuration, now) {
        let Some(want) = wanted.get(&standing.limit) else { continue };
        if standing.wait != Wait::None {
            continue;
        }
        let share = standing.available.get() / SHARE;
        let size = share.max(want.least.get()).min(want.most.get().max(want.least.get()));
        sizes.insert(standing.limit, Millitokens::saturating(size.into()));
    }
    sizes.retain(|_, size| *size > Millitokens::ZERO);
    sizes
}

/// Decides on a lease from what is known of the item; `None`: there is none. As [`decide`], after
/// what is returned.
///
/// [`decide`]: crate::decide
#[must_use]
pub fn lease(
    image: Option<&CompositeBucket>,
    acquire: Acquire<'_>,
    settlement: &Settlement,
    now: EpochMillis,
) -> Decision {
    decide_settling(image, acquire, Some(settlement), now)
}

/// Settling alone.
#[derive(Debug, Clone, Copy)]
pub struct Settle<'a> {
    /// Which bucket.
    pub bucket: &'a BucketId,
    /// What to settle.
    pub settlement: &'a Settlement,
    /// The limits as the lease knew them, for an item that expired meanwhile.
    pub configuration: &'a Configuration,
    /// The id of the write, the same for all its attempts.
    pub id: &'a RequestId,
}

/// Decides on settling from what is known of the item; `None`: there is none. It needs no guard: a
/// balance above the burst is never spent, and the next claim trims it.
#[must_use]
pub fn settle(image: Option<&CompositeBucket>, settle: Settle<'_>, now: EpochMillis) -> Adjustment {
    let Settle { bucket, settlement, configuration, id } = settle;
    let has = |limit: &LimitName| match image {
        Some(image) => image.limits.contains_key(limit),
        None => configuration.rule(limit).is_some(),
    };
    let named: std::collections::BTreeSet<_> =
        settlement.returned.keys().chain(settlement.counted.keys()).collect();
    let (there, gone): (Vec<_>, Vec<_>) = named.into_iter().partition(|limit| has(limit));
    let dropped = gone.into_iter().cloned().collect();
    if there.is_empty() {
        return Adjustment::NoSuchLimits(dropped);
    }
    let Some(image) = image else {
        // Gone is expired, hence full: nothing that comes back fits.
        let plan = new_item(bucket, (&Amounts::new(), &settlement.counted), configuration, id, now);
        return Adjustment::Write { plan, dropped };
    };
    if image.request_ids.contains(id) {
        return Adjustment::AlreadyApplied;
    }
    let mut plan = WritePlan {
        path: WritePath::Adjust,
        changes: vec![Change::Remember(id.clone())],
        conditions: vec![Condition::Unseen(id.clone())],
    };
    for limit in there {
        let returned = amount(&settlement.returned, limit).get();
        let tokens = image.limits.get(limit).map_or(0, |bucket| bucket.tokens.get());
        // What does not fit under the largest burst that there can be.
        let returned = returned.min(Millitokens::MAX.get() - tokens);
        plan.conditions.push(has_room(limit, Millitokens::saturating(-i128::from(returned))));
        plan.changes.push(Change::Add {
            limit: limit.clone(),
            tokens: returned,
            consumed: amount(&settlement.counted, limit).get(),
        });
    }
    Adjustment::Write { plan, dropped }
}

/// The balances of a view after what is returned, as far as it fits.
pub(crate) fn returned_to(view: &View<'_>, limit: &LimitName, returned: &Amounts) -> Millitokens {
    let tokens = view.image.limits.get(limit).map_or(0, |bucket| bucket.tokens.get());
    let returned = returned.get(limit).map_or(0, |amount| amount.get());
    Millitokens::saturating(i128::from(tokens) + i128::from(returned))
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
