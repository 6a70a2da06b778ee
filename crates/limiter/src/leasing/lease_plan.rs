//! The plan of one write: the tokens to lease, and the amounts to settle.

use std::collections::BTreeMap;

use sluicegate_core::{Amounts, LeaseRange, LimitName};

use super::times::Times;

/// The amounts that a write leases and settles.
#[derive(Debug, Clone, Default)]
pub(super) struct LeasePlan {
    pub(super) wanted: BTreeMap<LimitName, LeaseRange>,
    pub(super) returned: Amounts,
    pub(super) used: Amounts,
    /// The part of `returned` that may still be handed out if the write fails.
    pub(super) withdrawn: Vec<Withdrawn>,
    /// The time at which the plan was made.
    pub(super) asked_at: Times,
}

/// Tokens that a plan took out of a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Withdrawn {
    /// The index of the limit.
    pub(super) slot: usize,
    pub(super) milli: u64,
    /// The time until which they may be handed out, epoch milliseconds.
    pub(super) until_ms: i64,
}
