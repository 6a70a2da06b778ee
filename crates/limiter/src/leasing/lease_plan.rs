//! The plan of one write: the tokens to lease, and the amounts to settle.

use std::collections::BTreeMap;

use sluicegate_core::{Amounts, LeaseRange, LimitName};

use super::times::Times;
use crate::leasing_store::Counting;

/// The amounts that a write leases and settles.
#[derive(Debug, Clone, Default)]
pub(super) struct LeasePlan {
    pub(super) wanted: BTreeMap<LimitName, LeaseRange>,
    pub(super) returned: Amounts,
    pub(super) used: Amounts,
    /// The part of `returned` that may still be handed out if the write fails, and until when.
    pub(super) withdrawn: Vec<(usize, u64, i64)>,
    pub(super) asked_at: Times,
}

impl LeasePlan {
    pub(super) fn is_worth_a_write(&self, counting: Counting<'_>) -> bool {
        let counts = matches!(counting, Counting::Used(used) if !used.is_empty());
        !self.wanted.is_empty() || !self.returned.is_empty() || counts
    }
}
