//! The balances that a permit knows.

use sluicegate_core::{EntityId, LimitName, Millitokens, Rule};

/// The balance of one limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Remaining {
    /// The entity whose limit it is.
    pub entity: EntityId,
    /// Its name.
    pub limit: LimitName,
    /// Its rule.
    pub rule: Rule,
    /// The tokens that are left, in millitokens; negative while there is a debt.
    pub available: Millitokens,
    /// The share of the burst that is left, from 0 to 1.
    pub share: f64,
}

impl Remaining {
    pub(super) fn new(
        entity: EntityId,
        limit: LimitName,
        rule: Rule,
        available: Millitokens,
    ) -> Self {
        let share = share(available, rule.burst());
        Self { entity, limit, rule, available, share }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than a double's precision")]
pub(super) fn share(available: Millitokens, burst: Millitokens) -> f64 {
    if burst <= Millitokens::ZERO {
        return 0.0;
    }
    (available.get().max(0) as f64 / burst.get() as f64).min(1.0)
}
