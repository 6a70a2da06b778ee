//! The trade-offs of a queue, its bounds and its counts.

use crate::{ClaimInterval, RequestId};

/// After this many attempts, no new write carries a request. Repetitions of a lost write count as
/// attempts, but are not limited.
pub(super) const ATTEMPTS_MAX: u32 = 40;
/// Up to this many outrun writes in a row, the queue does not pause. A failed condition returns the
/// current item, so another attempt at once has a good chance.
pub(super) const OUTRUNS_BEFORE_PAUSE: u32 = 3;
/// As `OUTRUNS_BEFORE_PAUSE`, while no request asks for tokens.
pub(super) const CORRECTION_OUTRUNS_BEFORE_PAUSE: u32 = 1;
/// Attempts of a correction under its conditions on the balance. Further attempts only require that
/// the balance stays in its range.
pub(super) const ATTEMPTS_BEFORE_FORCED: u32 = 12;
/// The same as `ATTEMPTS_MAX`, for a lease whose tokens no caller waits for. The number is small
/// because other requests may need these tokens now.
pub(super) const AHEAD_ATTEMPTS_MAX: u32 = 2;
/// Lost writes that one write can fence. An item has places for four ids. The fence takes three:
/// for the ids of the two lost writes, and for its own. The fourth keeps an id from before the lost
/// writes. The item drops its oldest id first. While it has the id from before the lost writes,
/// it has dropped none of theirs, so a lost write whose id is absent did not happen
/// (`may_have_forgotten`).
pub(super) const FENCED_OFF_MAX: usize = 2;
/// Ids of lost writes that a queue remembers, besides those that an item has or a fence may put
/// there: twice as many as an item remembers.
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
    /// For this long after a claim, writers take tokens without a claim of their own.
    pub interval: ClaimInterval,
    /// The greatest age, in milliseconds, of an image by which a request that came after it may be
    /// refused. Zero: none is refused by it.
    pub refusal_age_max_ms: u64,
    /// True if each write is a transaction, which is done once under its `ClientRequestToken`.
    pub is_transactional: bool,
}

/// The counts of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Lost writes that no image can resolve, and those that were sent again and then succeeded, if
    /// a request of them gives back more of a limit than it takes.
    pub ambiguous: u32,
    /// Refill times that were pulled back because they were far ahead of this process's clock.
    pub clocks_ahead: u32,
    /// Writes of corrections that took tokens without conditions on the balance but its range.
    pub forced: u32,
    /// Expiries that could not be moved, although the item expires before its debt is refilled.
    pub unextended: u32,
}
