//! Settings of a store of composite buckets.

use std::time::Duration;

use sluicegate_core::ClaimInterval;

/// The settings of a store of composite buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// For this long after a claim, writers take without a claim of their own; 100 ms by default.
    /// If a round trip takes more than 20 ms, set this to five round trips. With a shorter
    /// interval, a process learns of a claim too late to use it, and its requests wait for claims
    /// of their own.
    pub claim_interval: ClaimInterval,
    /// The greatest age of an image that a refusal may be based on; 1 s. Zero: every refusal comes
    /// from the table.
    pub refusal_age_max: Duration,
    /// How a child's and its parent's bucket are written.
    pub cascade_mode: CascadeMode,
    /// How the store finds out what became of a write whose answer was lost.
    pub certainty: Certainty,
    /// The most buckets that are remembered; 100,000. A bucket takes about a kilobyte.
    pub buckets_max: usize,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            claim_interval: ClaimInterval::default(),
            refusal_age_max: Duration::from_secs(1),
            cascade_mode: CascadeMode::default(),
            certainty: Certainty::default(),
            buckets_max: 100_000,
        }
    }
}

/// How a child's and its parent's bucket are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CascadeMode {
    /// In one transaction, both or neither: four write units.
    #[default]
    Transaction,
    /// Concurrently: two write units. If one bucket does not grant, the tokens taken from the other
    /// are given back. Until then the other bucket admits less, never more. The tokens stay taken
    /// if the answer of one write is lost, if the process ends or the caller stops waiting before
    /// they are given back, or if giving them back fails.
    Compensating,
}

/// How the store finds out what became of a write whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Certainty {
    /// The item remembers the last requests ([`guide`](crate::guide#lost-answers)). Once the item
    /// has forgotten a request, it cannot tell if that request's write was done: see
    /// [`Counters::ambiguous`](crate::store::Counters).
    #[default]
    Remembered,
    /// Every write is a transaction under a token of its own, which DynamoDB remembers for ten
    /// minutes: certain, at twice the write units.
    Transactional,
}
