//! The settings of the circuit breaker.

use std::time::Duration;

/// When a store counts as unavailable, and how often it is probed then.
///
/// A call fails if the store does not answer by its deadline, or answers with a failure of its own
/// (of HTTP: 5xx, but not 501). Any other answer, a refusal included, is no failure. If a caller
/// leaves before its deadline, the store is probed, and a probe that fails counts as a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures in a row after which the store counts as unavailable; 5 by default. With 0 or 1,
    /// the first failure suffices.
    pub failures: u32,
    /// The store also counts as unavailable after two failures that are at least this far apart,
    /// with no answer in between; 1 s by default.
    pub failing_for: Duration,
    /// The time between two probes of an unavailable store: 250 ms by default, from 1 ms to a
    /// minute. A probe is the cheapest read that the store has. After the answer to a probe, one
    /// call is let through. After the answer to that call, all calls are.
    pub probe_every: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 5,
            failing_for: Duration::from_secs(1),
            probe_every: Duration::from_millis(250),
        }
    }
}

impl BreakerConfig {
    /// Every call asks the store and waits for its own deadline, however long the store has not
    /// answered.
    #[must_use]
    pub fn never() -> Self {
        Self { failures: u32::MAX, failing_for: Duration::MAX, ..Self::default() }
    }

    /// True if no number of failures opens the breaker.
    pub(super) const fn never_opens(&self) -> bool {
        self.failures == u32::MAX && self.failing_for.as_secs() == u64::MAX
    }
}
