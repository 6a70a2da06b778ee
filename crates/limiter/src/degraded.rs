//! What is granted without the store: by which policy, and why the store did not decide.

use std::sync::Arc;

use sluicegate_core::EpochMillis;

/// What an acquire comes to while the store is away: it does not answer by the deadline, it answers
/// that it failed (HTTP 5xx), or has done so for a while and is not asked.
///
/// A [`LeasedLimiter`](crate::LeasedLimiter) first hands out what it holds.
///
/// Any other answer is an error under every setting: a limit that is short, contention and
/// throttling, a missing permission or table, a refusal for an unknown reason. Otherwise a missing
/// permission would fail open permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUnavailable {
    /// It is granted, and nothing is counted: traffic matters more than its limits.
    #[default]
    Allow,
    /// It is [`AcquireError::Unavailable`](crate::AcquireError::Unavailable).
    Deny,
    /// Buckets of this process decide, by the same limits: those that came with the request, else
    /// those by which the store granted last. Where nobody in the process knows them, it is
    /// `Unavailable`.
    ///
    /// A bucket starts with what the store said of it last, or full. Several processes have one
    /// each, so together they may admit as many times what is there. What was consumed is taken
    /// from the store when it answers again, summed up for each bucket: of 10,000 buckets at most,
    /// and from the rest not ([`Counters::uncommitted`](crate::Counters)). A process that ends
    /// before, or drops its last limiter, takes it along. A request that is not answered may have
    /// taken its tokens in the store all the same; then they are taken twice, the restrictive
    /// direction.
    Local,
}

/// That a lease was granted without the store, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// By which setting.
    pub policy: OnUnavailable,
    /// Why the store did not decide.
    pub cause: Cause,
}

/// Why the store did not decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It did not answer by the deadline of this very call, or answered that it failed; what was met
    /// instead.
    Unanswered(Arc<str>),
    /// It was not asked, because others were not answered.
    NotAsked {
        /// Since when it has not been, by the limiter's clock.
        since: EpochMillis,
    },
}

impl std::fmt::Display for Degraded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.cause {
            Cause::Unanswered(error) => write!(f, "granted without the store: {error}"),
            Cause::NotAsked { since } => {
                write!(f, "granted without the store, which has been away since {since}")
            }
        }
    }
}
