//! The parts of a correction's plan: the range that balances stay in, and the write without other
//! conditions on the balance.
//!
//! A correction is never refused. One that takes needs the conditions of an acquire all the same:
//! an unconditional ADD to a bucket that is full by now has no effect, because the next claim adds
//! refill from before it. One that gives back needs none.

use crate::debit::add;
use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::{Amounts, LimitName, Millitokens, RequestId};

/// The balance stays within the range of [`Millitokens`]. The condition also requires that the
/// limit exists: an ADD to a missing limit would leave a partial bucket that no path can use.
pub(crate) fn stays_in_range(limit: &LimitName, amount: Millitokens) -> Condition {
    if amount > Millitokens::ZERO {
        Condition::AtLeast(limit.clone(), Millitokens::MIN.get() + amount.get())
    } else {
        Condition::AtMost(limit.clone(), Millitokens::MAX.get() + amount.get())
    }
}

/// Adds to the balances whatever they are, on condition that the limits exist and stay in range.
pub(crate) fn add_only(
    (amounts, counted): (&Amounts, &Amounts),
    id: &RequestId,
    fenced_off: &[RequestId],
) -> WritePlan {
    let ids = || fenced_off.iter().chain([id]).cloned();
    let mut plan = WritePlan {
        path: WritePath::Adjust,
        changes: ids().map(Change::Remember).collect(),
        conditions: ids().map(Condition::Unseen).collect(),
    };
    for (limit, amount) in amounts {
        plan.conditions.push(stays_in_range(limit, *amount));
        plan.changes.push(add(limit, 0, *amount, counted.of(limit)));
    }
    plan
}
