//! How a process leases.

use std::time::Duration;

/// How tokens are handed out by the process itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Whether tokens are debited before they are handed out.
    pub mode: LeaseMode,
    /// How long tokens may be handed out after they were leased; 1 s. What is left then goes back
    /// with the next write, or by itself half as long again later. At least 40 ms.
    pub max_age: Duration,
    /// A lease takes at least so many requests like the largest one; 1.
    pub min: u32,
    /// And at most so many; a million.
    pub max: u32,
    /// Buckets of which tokens are held at once; 100,000. Requests of any beyond that go to the store,
    /// until those that nobody asked for lately are settled in the background and make room. One that
    /// cannot be settled stays.
    pub max_keys: usize,
    /// How long one write of the background may take, all attempts together; 1 s.
    pub deadline: Duration,
}

/// What a process may hand out.
///
/// | | tokens admitted in any time | counted as consumed | a crash costs |
/// |---|---|---|---|
/// | [`Strict`](Self::Strict), [`AtLease`](Accounting::AtLease) | what the bucket held and earned, and what was leased before | when leased; what comes back is taken out again | what the process held is neither used nor given back, and counted: at most one lease, and one on its way |
/// | `Strict`, [`AtSettle`](Accounting::AtSettle) | the same | when handed out, with the next write | the same, and what it handed out since its last write is not counted |
/// | [`WriteBehind`](Self::WriteBehind) | that, and `threshold` for each process | when handed out, with the next write | what it handed out since its last write is neither debited nor counted: at most `threshold` |
///
/// | | what counts the consumption | an answer that was lost |
/// |---|---|---|
/// | on DynamoDB | the counters of the item; by its stream, usage windows | is found out: the item remembers the last four writes |
/// | in memory | the counters of the item | |
/// | on Redis | the counters of the hash, as long as it lives; no windows, as there is no stream | is found out: the hash remembers the last four writes, and what they leased |
///
/// Where four others wrote before it could be found out, what was on its way is neither handed out
/// nor given back, and is counted in [`Counters::ambiguous`](crate::Counters::ambiguous).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseMode {
    /// Tokens that are debited from the shared bucket already.
    Strict(Accounting),
    /// Tokens of the balance that it knows, debited afterwards.
    WriteBehind {
        /// How many tokens of one limit it may have handed out that are not debited yet; those on
        /// their way count. At least 1; a larger request is debited before it is granted.
        threshold: u32,
    },
}

/// When leased tokens are counted as consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accounting {
    /// When they are leased; what goes back is taken out again. A crash counts too much, by what the
    /// process held.
    #[default]
    AtLease,
    /// When they were handed out, by the next write. A crash counts too little, by what was handed
    /// out since the last.
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
            min: 1,
            max: 1_000_000,
            max_keys: 100_000,
            deadline: Duration::from_secs(1),
        }
    }
}

impl LeaseSettings {
    pub(super) fn max_age_ms(&self) -> i64 {
        i64::try_from(self.max_age.as_millis()).unwrap_or(i64::MAX / 4).max(40)
    }
}
