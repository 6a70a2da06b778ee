//! The number of tokens that a process takes ahead of need.
//!
//! A process that leases is a process that acquires more than it was asked for and hands it out
//! itself. The write of a lease has all conditions of an acquire. Tokens that come back with it are
//! capped as refill is: a surplus over the cap is lost, so no token is spent twice.

use std::collections::BTreeMap;

use crate::status::evaluate_with_returned;
use crate::{
    Amounts, BucketId, CompositeBucket, Configuration, EpochMillis, LimitName, Millitokens,
};

/// A lease takes at most the balance divided by this, unless more is needed now. So other processes
/// on the bucket find tokens, too.
const SHARE: i64 = 4;

/// The amount of a limit that a lease should take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseRange {
    /// The amount that is needed now: if the bucket has less, the lease is short.
    pub least: Millitokens,
    /// The greatest amount that the process has a use for.
    pub most: Millitokens,
}

/// The amount of each limit to lease: as much as is wanted and the bucket can spare. For a limit
/// that is short or unknown, it is the least. Zeros are left out. An `image` of `None` means that
/// there is no item.
pub(crate) fn lease_size(
    bucket: &BucketId,
    image: Option<&CompositeBucket>,
    wanted: &BTreeMap<LimitName, LeaseRange>,
    returned: &Amounts,
    configuration: &Configuration,
    now: EpochMillis,
) -> Amounts {
    let mut sizes: Amounts =
        wanted.iter().map(|(limit, want)| (limit.clone(), want.least)).collect();
    let limits = evaluate_with_returned(bucket, image, (&sizes, returned), configuration, now);
    for status in limits {
        let Some(want) = wanted.get(&status.limit) else { continue };
        if status.is_violated() {
            continue;
        }
        let share = status.available.get() / SHARE;
        let size = share.max(want.least.get()).min(want.most.get().max(want.least.get()));
        sizes.insert(status.limit, Millitokens::saturating(size.into()));
    }
    sizes.retain(|_, size| *size > Millitokens::ZERO);
    sizes
}
