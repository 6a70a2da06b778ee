//! The trade-offs of a queue, its bounds and its counts.

use crate::{ClaimInterval, RequestId};

/// Writes that one request may be part of. An attempt fails because another writer came first or
/// the table was throttled.
pub(super) const ATTEMPTS_MAX: u32 = 40;
/// The queue pauses only after more than this many outrun writes in a row. Before that no pause is
/// needed: a failed condition returns the item as it is at this moment.
pub(super) const OUTRUNS_BEFORE_PAUSE: u32 = 3;
/// The same if no caller waits for tokens.
pub(super) const CORRECTION_OUTRUNS_BEFORE_PAUSE: u32 = 1;
/// Attempts of a correction under its conditions on the balance. After that it is written without
/// them; the balance must only stay in its range.
pub(super) const ATTEMPTS_BEFORE_FORCED: u32 = 12;
/// Writes of a lease that no caller waits for: others may need the same tokens now.
pub(super) const AHEAD_ATTEMPTS_MAX: u32 = 2;
/// Lost writes that one write fences off: an item remembers four ids.
pub(super) const FENCED_OFF_MAX: usize = 2;
/// Ids of lost writes that are remembered, of which an item may remember four.
pub(super) const UNUSABLE_IDS_MAX: usize = 2 * RequestId::REMEMBERED;
/// Corrections and leases that ended after their callers left and are remembered, in case they
/// enter again.
pub(super) const ENDED_WITHOUT_CALLER_MAX: usize = 64;
/// Attempts to move an expiry.
pub(super) const EXTENSIONS_MAX: u32 = 5;

/// Buckets of one queue at most: a child's and its parent's.
pub(super) const BUCKETS_MAX: usize = 2;

/// The trade-offs of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueSettings {
    /// The time for which a claim serves later writers.
    pub interval: ClaimInterval,
    /// The greatest age of an image that a request is refused from, in milliseconds.
    pub refusal_age_max_ms: u64,
    /// True if each write is a transaction that is done once under its token.
    pub is_transactional: bool,
}

/// The counts of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Lost answers that no image can resolve, and refunds that were sent again after a lost
    /// answer.
    pub ambiguous: u32,
    /// Refill times that were pulled back because they were far ahead of this clock.
    pub clocks_ahead: u32,
    /// Corrections without conditions on the balance.
    pub forced: u32,
    /// Expiries that could not be moved, although the item expires before its debt is refilled.
    pub unextended: u32,
}
