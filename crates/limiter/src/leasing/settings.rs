//! Settings of leasing.

use std::time::Duration;

/// The settings by which a process leases tokens and hands them out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Says if tokens are debited before they are handed out.
    pub mode: LeaseMode,
    /// How long tokens may be handed out after they were leased; 1 s, and at least 40 ms. The next
    /// write then gives the rest back. If there is none for half that time, the rest goes back in a
    /// write of its own.
    pub max_age: Duration,
    /// A lease ahead of need aims at at least this many times the largest request; 1. It takes less
    /// of a bucket that has little left.
    pub min_requests: u32,
    /// Beside the tokens of its request, a lease takes at most this many times the largest request;
    /// 1,000,000.
    pub max_requests: u32,
    /// The most buckets of which tokens are held at once; 100,000. Requests for any other bucket go
    /// to the store, while the longest idle buckets are settled in the background to make room. A
    /// bucket that cannot be settled stays.
    pub max_keys: usize,
    /// The most time that one background write may take, all attempts together; 1 s.
    pub deadline: Duration,
}

/// The tokens that a process may hand out.
///
/// | | tokens admitted in any time | counted as consumed | a crash costs |
/// |---|---|---|---|
/// | [`Strict`](Self::Strict), [`AtLease`](Accounting::AtLease) | the tokens that the bucket held and earned, and those leased before | when leased; tokens given back are subtracted again | the tokens that the process held stay counted, although no request used them: at most one lease, and one in flight |
/// | `Strict`, [`AtSettle`](Accounting::AtSettle) | the same | when handed out, with the next write | the same, and the tokens handed out since the last write are not counted |
/// | [`WriteBehind`](Self::WriteBehind) | the same, and `threshold` for each process | when handed out, with the next write | the tokens handed out since the last write are neither debited nor counted: at most `threshold` |
///
/// | | counters of the consumption | an answer that was lost |
/// |---|---|---|
/// | on DynamoDB | the counters of the item; by its stream, usage windows | its result is found out while the item remembers it |
/// | in memory | the counters of the item | |
/// | on Redis | the counters of the bucket, until it expires; no usage windows, because Redis has no stream | its result is found out while the bucket remembers it and the amounts that it leased |
///
/// If the bucket forgot the write before ([`guide`](crate::guide#lost-answers)), the tokens of the
/// write are neither handed out nor given back, and with `AtSettle` the use that it reported may
/// stay uncounted. [`Counters::ambiguous`](crate::store::Counters::ambiguous) counts such writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseMode {
    /// Tokens are debited from the shared bucket first.
    Strict(Accounting),
    /// Tokens of the known balance are handed out and debited afterwards.
    WriteBehind {
        /// The most tokens of one limit that may be handed out and not yet debited, at least 1.
        /// Tokens that a write in flight is debiting count. A request for more tokens is debited
        /// before it is granted.
        threshold: u32,
    },
}

/// When leased tokens are counted as consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Accounting {
    /// When they are leased; tokens that go back are subtracted again. A crash counts too much, by
    /// the tokens that the process held.
    #[default]
    AtLease,
    /// When they were handed out, by the next write. A crash counts too little, by the tokens
    /// handed out since the last write.
    AtSettle,
}

impl Default for LeaseMode {
    /// Strict, counted when leased.
    fn default() -> Self {
        Self::Strict(Accounting::AtLease)
    }
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            mode: LeaseMode::default(),
            max_age: Duration::from_secs(1),
            min_requests: 1,
            max_requests: 1_000_000,
            max_keys: 100_000,
            deadline: Duration::from_secs(1),
        }
    }
}

/// The shortest `max_age`.
const MAX_AGE_MIN_MS: i64 = 40;

impl LeaseSettings {
    pub(super) fn max_age_ms(&self) -> i64 {
        i64::try_from(self.max_age.as_millis()).unwrap_or(i64::MAX / 4).max(MAX_AGE_MIN_MS)
    }
}
