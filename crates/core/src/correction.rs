//! The parts of a correction's plan: the range that balances stay in, and the write without other
//! conditions on the balance.
//!
//! A correction is never refused, so it does not require that the balance suffices. A correction
//! that takes needs the other conditions of an acquire: if the bucket is full by now, the next
//! claim may undo an unconditional ADD. (A comment in `take_unclaimed`, `debit.rs`, has an example
//! in numbers.) A correction that only gives back needs only the conditions of [`add_only`].

use crate::debit::add;
use crate::plan::{Change, Condition, WritePath, WritePlan};
use crate::{Amounts, EpochMillis, LimitName, Millitokens, RequestId};

/// The balance stays within the range of [`Millitokens`]. The condition also requires that the
/// limit exists: an ADD to a missing limit would leave a partial bucket that no path can use.
pub(crate) fn stays_in_range(limit: &LimitName, amount: Millitokens) -> Condition {
    if amount > Millitokens::ZERO {
        Condition::AtLeast(limit.clone(), Millitokens::MIN.get() + amount.get())
    } else {
        Condition::AtMost(limit.clone(), Millitokens::MAX.get() + amount.get())
    }
}

/// Moves the balances, on the sole conditions that the limits exist, that the balances stay in
/// range, and that the item does not remember the ids.
pub(crate) fn add_only(
    (amounts, counted): (&Amounts, &Amounts),
    id: &RequestId,
    fenced_off: &[RequestId],
) -> WritePlan {
    let ids = || fenced_off.iter().chain([id]).cloned();
    let mut plan = WritePlan {
        path: WritePath::AddOnly,
        changes: ids().map(Change::Remember).collect(),
        conditions: ids().map(Condition::Unseen).collect(),
    };
    if amounts.is_empty() {
        // An item that does not exist remembers nothing either. The write would make an item that
        // has ids but no limits.
        plan.conditions.push(Condition::RefilledSince(EpochMillis::MIN));
    }
    for (limit, amount) in amounts {
        plan.conditions.push(stays_in_range(limit, *amount));
        plan.changes.push(add(limit, 0, *amount, counted.of(limit)));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{milli, name};

    /// Of a missing item, only `Unseen` holds: it has no attribute that could have a value.
    #[test]
    fn no_correction_makes_an_item_of_ids_alone() {
        for amounts in [Amounts::new(), Amounts::from([(name("l"), milli(-1))])] {
            let plan = add_only((&amounts, &amounts), &RequestId::from_bits(1), &[]);
            let holds_for_none = |condition: &_| matches!(condition, Condition::Unseen(_));
            assert!(!plan.conditions.iter().all(holds_for_none), "{plan:?}");
        }
    }
}
