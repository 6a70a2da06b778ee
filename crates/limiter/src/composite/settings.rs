//! How a store of composite buckets works: what it trades for what.

use std::time::Duration;

use sluicegate_core::ClaimInterval;

/// How a store of composite buckets works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long a claim of refill serves the writers behind it; 100 ms. For a table that is further
    /// away than 20 ms there and back, five times that: a claim that is known too late serves
    /// nobody, and writers queue to make their own.
    pub claim_interval: ClaimInterval,
    /// How old an image may be that "no" is said from; 1 s. Zero: every "no" comes from the table.
    pub deny_cache: Duration,
    /// How a child's and its parent's buckets are written together.
    pub cascade_mode: CascadeMode,
    /// How a write whose answer was lost is told from one that did not happen.
    pub certainty: Certainty,
    /// Buckets that are remembered; 100,000. A bucket takes about a kilobyte.
    pub buckets_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            claim_interval: ClaimInterval::default(),
            deny_cache: Duration::from_secs(1),
            cascade_mode: CascadeMode::default(),
            certainty: Certainty::default(),
            buckets_max: 100_000,
        }
    }
}

/// How a child's and its parent's buckets are written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CascadeMode {
    /// In one transaction, both or neither: four write units.
    #[default]
    Transaction,
    /// BucketRequest by side, and what was taken from one is given back when the other refuses: two write
    /// units. For a moment, and for good when the process dies between the two, tokens are taken
    /// from one bucket only: it admits less, never more.
    Compensating,
}

/// How a write whose answer was lost is told from one that did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Certainty {
    /// The item remembers the last four requests. When four others wrote in between it cannot tell:
    /// see [`Counters::ambiguous`](crate::Counters).
    #[default]
    Remembered,
    /// Every write is a transaction under a token of its own, which DynamoDB remembers for ten
    /// minutes: certain, at twice the write units.
    Transactional,
}
