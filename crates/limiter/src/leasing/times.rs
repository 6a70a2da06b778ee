//! The times that a write of a bucket is planned by.

use super::limit_ledger::ENDED_MS;

/// The times that a draft is made by, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) now: i64,
    /// How long a renewal takes.
    pub(super) lead: i64,
    /// The clock is behind what it said before: tokens would seem younger than they are.
    pub(super) is_set_back: bool,
    /// How often it was, so far.
    pub(super) set_backs: u32,
}

impl Times {
    /// The end of tokens that were asked for, or taken out of a pool, at `asked`: it is past when the
    /// clock was set back since, or had been and nobody had looked.
    pub(super) fn until_ms(&self, asked: &Self, until_ms: i64, max_age_ms: i64) -> i64 {
        let is_of_another_clock =
            asked.set_backs != self.set_backs || until_ms > asked.now.saturating_add(max_age_ms);
        if is_of_another_clock { ENDED_MS } else { until_ms }
    }
}
