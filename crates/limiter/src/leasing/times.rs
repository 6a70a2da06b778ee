//! The times by which a write of a bucket is planned.

use super::limit_ledger::ENDED_MS;

/// The times by which a plan is made, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) now: i64,
    /// The time before the deadline at which a renewal starts: twice the average write, and 2 ms.
    pub(super) renew_ms: i64,
    /// The clock shows less than at its last reading. Every lease then ends, because its age is
    /// unknown.
    pub(super) is_set_back: bool,
    /// The number of times that the clock was set back so far.
    pub(super) set_backs: u32,
    /// How long tokens may be handed out.
    pub(super) max_age_ms: i64,
}

impl Times {
    /// The end of tokens that the store is asked for now.
    pub(super) fn new_until_ms(&self) -> i64 {
        self.now.saturating_add(self.max_age_ms)
    }

    /// The end of tokens that were asked for, or taken out of a pool, at `asked_at`. It lies in the
    /// past if the clock was set back since then, or had been set back before and no reading had
    /// noticed.
    pub(super) fn until_ms(&self, asked_at: &Self, until_ms: i64) -> i64 {
        let is_of_another_clock =
            asked_at.set_backs != self.set_backs || until_ms > asked_at.new_until_ms();
        if is_of_another_clock { ENDED_MS } else { until_ms }
    }
}
