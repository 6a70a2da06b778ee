//! What one write is to lease and to settle.

use std::collections::BTreeMap;

use sluicegate_core::{Amounts, LeaseRange, LimitName};

use super::times::Times;
use crate::leasing_store::Counting;

/// What a write is to lease and to settle.
#[derive(Debug, Clone, Default)]
pub(super) struct LeasePlan {
    pub(super) wanted: BTreeMap<LimitName, LeaseRange>,
    pub(super) returned: Amounts,
    pub(super) used: Amounts,
    /// What of `returned` may still be handed out, and until when, if the write is not done.
    pub(super) withdrawn: Vec<(usize, u64, i64)>,
    pub(super) asked: Times,
}

impl LeasePlan {
    pub(super) fn is_worth_a_write(&self, counting: Counting<'_>) -> bool {
        let counts = matches!(counting, Counting::Used(used) if !used.is_empty());
        !self.wanted.is_empty() || !self.returned.is_empty() || counts
    }
}
