//! The number of tokens that a process takes ahead of need.
//!
//! A process that leases is a process that acquires more than it was asked for and hands it out
//! itself. The write of a lease has all conditions of an acquire. Tokens that come back with it go
//! through the cap as a refill claim does, so that the surplus is lost and never spent twice.

use std::collections::BTreeMap;

use crate::status::evaluate_after;
use crate::{
    Amounts, BucketId, CompositeBucket, Configuration, EpochMillis, LimitName, Millitokens,
};

/// A lease takes the balance divided by this, and at least what is needed now. Other processes on the
/// bucket find tokens, too, and those that want the same get equal shares.
const SHARE: i64 = 4;

/// The amount of a limit that a lease should take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseRange {
    /// Without this the lease is short.
    pub least: Millitokens,
    /// The process has no use for more.
    pub most: Millitokens,
}

/// The amount of each limit to lease: the wanted one, as far as the bucket can spare it. An `image` of
/// `None` means that there is no item. Unknown limits come to their least.
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
    let limits = evaluate_after(bucket, image, (&sizes, returned), configuration, now);
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
