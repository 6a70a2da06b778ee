//! The terms of a lease: how much it takes, and what it settles of earlier ones.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::less;
use crate::{Amounts, LeaseRange, LimitName, Millitokens};

/// The terms of a lease, in addition to its demand. The demand is the least that the lease takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LeaseTerms {
    /// The least and the most to take of each limit; empty: the lease only settles.
    pub wanted: BTreeMap<LimitName, LeaseRange>,
    /// Tokens that come back, as far as they fit; no amount is negative. A lease whose answer was
    /// lost names all its limits here, some with zero. So there is a write, and the bucket
    /// remembers its id, even if nothing else is settled.
    pub returned: Amounts,
    /// The amounts that move the counters of consumption. `None`: the leased amounts less the
    /// returned ones.
    pub counted: Option<Amounts>,
}

impl LeaseTerms {
    /// The least that the lease takes. If the bucket has less, the lease is refused.
    #[must_use]
    pub fn least(&self) -> Amounts {
        let is_needed = |(_, want): &(&LimitName, &LeaseRange)| want.least > Millitokens::ZERO;
        let wanted = self.wanted.iter().filter(is_needed);
        wanted.map(|(limit, want)| (limit.clone(), want.least)).collect()
    }

    /// True if no caller waits for its tokens.
    pub(super) fn is_ahead_of_need(&self) -> bool {
        let is_no_need = |want: &LeaseRange| want.least <= Millitokens::ZERO;
        !self.wanted.is_empty() && self.wanted.values().all(is_no_need)
    }

    /// True if it gives back or counts tokens of one of these limits.
    pub(super) fn settles_any_of(&self, limits: &BTreeSet<LimitName>) -> bool {
        let moves = |amounts: &Amounts, limit| amounts.of(limit) != Millitokens::ZERO;
        let counts = |limit| self.counted.as_ref().is_some_and(|counted| moves(counted, limit));
        limits.iter().any(|limit| moves(&self.returned, limit) || counts(limit))
    }

    /// The amounts that move the counters of consumption once `leased` is taken.
    pub(super) fn counted(&self, leased: &Amounts) -> Amounts {
        self.counted.clone().unwrap_or_else(|| less(leased.clone(), &self.returned))
    }
}
