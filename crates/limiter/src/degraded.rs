//! Grants without the store: the policy that grants, and the reason why the store did not decide.

use std::sync::Arc;

use sluicegate_core::EpochMillis;

/// The outage policy: decides an acquire while the store is unavailable. The store is unavailable
/// if it does not answer by the deadline, if it answers that it failed (of HTTP: 5xx, but not 501),
/// or if it is not asked because earlier calls failed.
///
/// Any other answer without a grant stands, and the request fails under every setting: a limit that
/// is short, contention, throttling, a missing permission or table, a refusal for an unknown
/// reason. If a policy could grant after these, a missing permission would fail open permanently.
///
/// A limiter that leases hands out the tokens that it holds before this policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// The request is granted, and nothing is counted: traffic matters more than its limits.
    #[default]
    Allow,
    /// The request fails with [`AcquireError::Unavailable`](crate::AcquireError::Unavailable).
    Deny,
    /// Buckets of this process decide, by the same limits: those that came with the request, or
    /// else those of the store's last grant. If the process knows neither, the request fails with
    /// `Unavailable`.
    ///
    /// A bucket starts from the store's last grant (with leasing, from the newest state that this
    /// process knows), or full; corrections since that grant are not subtracted. Each limiter has
    /// its own copy, which its clones share, so N limiters may admit up to N times the balance.
    /// When the store answers again, the consumption is debited there, one sum for each bucket.
    /// This holds for 10,000 buckets at most; the consumption of further ones is not debited
    /// ([`Counters::outage_debits_lost`](crate::store::Counters)). If the process ends, or drops
    /// the limiter and its last clone, before the debit, the consumption is lost. A request without
    /// an answer may have taken its tokens in the store nevertheless; they are then taken twice,
    /// so that too little is granted, never too much.
    Local,
}

/// States that a permit was granted without the store, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Degraded {
    /// The setting that granted it.
    pub policy: OnUnavailable,
    /// The reason why the store did not decide.
    pub cause: Cause,
}

/// The reason why the store did not decide.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The store did not answer this call by its deadline, or answered that it failed. The text is
    /// the error.
    CallFailed(Arc<str>),
    /// The store was not asked, because other calls were not answered.
    NotAsked {
        /// When it became unavailable, by the limiter's clock.
        since: EpochMillis,
    },
}

impl std::fmt::Display for Degraded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.cause {
            Cause::CallFailed(error) => write!(f, "granted without the store: {error}"),
            Cause::NotAsked { since } => {
                let since = since.rfc3339();
                write!(f, "granted without the store, which has been unavailable since {since}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_since_when_in_words_that_people_read() {
        let since = EpochMillis::new(1_769_608_800_123).unwrap();
        let degraded = Degraded { policy: OnUnavailable::Allow, cause: Cause::NotAsked { since } };
        let text = "granted without the store, which has been unavailable since \
            2026-01-28T14:00:00.123Z";
        assert_eq!(degraded.to_string(), text);
    }
}
