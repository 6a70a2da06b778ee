//! Sums and negations of amounts.

use sluicegate_core::{Amounts, Millitokens};

/// Adds amounts to sums, each within the range of [`Millitokens`].
pub(crate) fn add(sums: &mut Amounts, amounts: &Amounts) {
    for (limit, more) in amounts {
        match sums.get_mut(limit) {
            Some(sum) => {
                *sum = Millitokens::saturating(i128::from(sum.get()) + i128::from(more.get()));
            }
            None => _ = sums.insert(limit.clone(), *more),
        }
    }
}

/// What gives back what these amounts take.
pub(crate) fn negated(amounts: &Amounts) -> Amounts {
    amounts
        .iter()
        // The range is symmetric: any amount that can be taken can be given back.
        .filter_map(|(limit, amount)| {
            let back = Millitokens::new(-amount.get()).ok()?;
            Some((limit.clone(), back))
        })
        .collect()
}
