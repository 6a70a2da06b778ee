//! Refill timestamps that no working clock can have written.

use crate::{CompositeBucket, EpochMillis};

/// If a refill timestamp is further ahead of the clock than this, in milliseconds, some clock is
/// wrong.
const AHEAD_MS: i64 = 60_000;

/// True if the item's refill timestamp is more than a minute ahead of this clock: the clock that
/// wrote it or this one is wrong.
#[must_use]
pub fn is_refill_time_ahead(image: &CompositeBucket, now: EpochMillis) -> bool {
    is_ahead(image.refilled_at, now)
}

pub(crate) fn is_ahead(refilled_at: EpochMillis, now: EpochMillis) -> bool {
    refilled_at.get() > now.get() + AHEAD_MS
}
