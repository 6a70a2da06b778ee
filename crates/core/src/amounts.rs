//! Amounts of tokens by limit, with the arithmetic of all of them at once.

use std::collections::{BTreeMap, btree_map};
use std::ops::{AddAssign, Deref, DerefMut, Neg, SubAssign};

use crate::{LimitName, Millitokens};

/// Millitokens by limit, for the limits of one bucket.
///
/// An acquire asks for positive amounts. A correction adds its amounts to the consumption, so a
/// negative amount gives tokens back. Sums stop at the ends of the range of [`Millitokens`].
///
/// ```
/// use sluicegate_core::{Amounts, LimitName, Millitokens};
///
/// let rpm = LimitName::new("rpm")?;
/// let mut amounts = Amounts::from([(rpm.clone(), Millitokens::from_tokens(2)?)]);
/// amounts -= &Amounts::from([(rpm.clone(), Millitokens::from_tokens(5)?)]);
/// assert_eq!(amounts.of(&rpm).get(), -3_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amounts(BTreeMap<LimitName, Millitokens>);

impl Amounts {
    /// No amounts.
    pub const EMPTY: &'static Self = &Self::new();

    /// No amounts yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// The amount of a limit; zero where it is not named.
    #[must_use]
    pub fn of(&self, limit: &LimitName) -> Millitokens {
        self.0.get(limit).copied().unwrap_or(Millitokens::ZERO)
    }

    /// Adds to the amount of one limit.
    pub fn add(&mut self, limit: &LimitName, more: Millitokens) {
        match self.0.get_mut(limit) {
            Some(sum) => {
                *sum = Millitokens::saturating(i128::from(sum.get()) + i128::from(more.get()));
            }
            None => _ = self.0.insert(limit.clone(), more),
        }
    }
}

impl AddAssign<&Self> for Amounts {
    fn add_assign(&mut self, other: &Self) {
        for (limit, more) in other {
            self.add(limit, *more);
        }
    }
}

impl SubAssign<&Self> for Amounts {
    fn sub_assign(&mut self, other: &Self) {
        *self += &-other;
    }
}

impl Neg for &Amounts {
    type Output = Amounts;

    fn neg(self) -> Amounts {
        let negative = |amount: &Millitokens| Millitokens::saturating(-i128::from(amount.get()));
        self.iter().map(|(limit, amount)| (limit.clone(), negative(amount))).collect()
    }
}

impl Deref for Amounts {
    type Target = BTreeMap<LimitName, Millitokens>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Amounts {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<const N: usize> From<[(LimitName, Millitokens); N]> for Amounts {
    fn from(amounts: [(LimitName, Millitokens); N]) -> Self {
        Self(amounts.into())
    }
}

impl FromIterator<(LimitName, Millitokens)> for Amounts {
    fn from_iter<I: IntoIterator<Item = (LimitName, Millitokens)>>(amounts: I) -> Self {
        // Unlike the map's own, this makes no list of them first.
        let mut all = Self::new();
        all.extend(amounts);
        all
    }
}

impl Extend<(LimitName, Millitokens)> for Amounts {
    fn extend<I: IntoIterator<Item = (LimitName, Millitokens)>>(&mut self, amounts: I) {
        self.0.extend(amounts);
    }
}

impl IntoIterator for Amounts {
    type Item = (LimitName, Millitokens);
    type IntoIter = btree_map::IntoIter<LimitName, Millitokens>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Amounts {
    type Item = (&'a LimitName, &'a Millitokens);
    type IntoIter = btree_map::Iter<'a, LimitName, Millitokens>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{milli, name};

    fn amounts(amounts: &[(&str, i64)]) -> Amounts {
        let named = |(limit, amount): &(&str, i64)| (name(limit), milli(*amount));
        amounts.iter().map(named).collect()
    }

    #[test]
    fn sums_and_differences_name_the_limits_of_both() {
        let (one, other) = (amounts(&[("a", 5), ("b", 7)]), amounts(&[("b", 9), ("c", 1)]));
        let mut sum = one.clone();
        sum += &other;
        assert_eq!(sum, amounts(&[("a", 5), ("b", 16), ("c", 1)]));
        let mut difference = one;
        difference -= &other;
        assert_eq!(difference, amounts(&[("a", 5), ("b", -2), ("c", -1)]));
        assert_eq!(-&difference, amounts(&[("a", -5), ("b", 2), ("c", 1)]));
    }

    #[test]
    fn sums_stop_at_the_ends_of_the_range() {
        let most = amounts(&[("a", Millitokens::MAX.get())]);
        let mut sum = most.clone();
        sum += &most;
        assert_eq!(sum, most);
        let mut difference = -&most;
        difference -= &most;
        assert_eq!(difference, -&most);
    }
}
