//! How many tokens a process takes ahead of need.
//!
//! A process that leases is a process that acquires more than it was asked for and hands it out
//! itself. The write of a lease has all conditions of an acquire. Tokens that come back with it go
//! through the cap as a refill claim does, so that the surplus is lost and never spent twice.

use std::collections::BTreeMap;

use crate::standing::standings_after;
use crate::{Amounts, CompositeBucket, Configuration, EpochMillis, LimitName, Millitokens, Wait};

/// A lease takes one part in so many of what is there, and at least what is needed now: others on
/// the bucket find something, too, and those that ask for the same come to the same share.
const SHARE: i64 = 4;

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
