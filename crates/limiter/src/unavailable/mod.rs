//! Decides requests while the store does not answer.
//!
//! Every call of a limiter on its store goes through here. An answer of the store stands; only
//! without one the limiter's [`OnUnavailable`] decides. Every call has a deadline, and a
//! [`BreakerConfig`] spares the calls of an outage that wait.

mod breaker;
mod call;
mod local;
mod pending_debits;
mod recovery;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use sluicegate_core::EpochMillis;

use self::breaker::CircuitBreaker;
use self::local::Local;
use self::recovery::RecoveryTask;

pub use self::breaker::BreakerConfig;
pub(crate) use self::call::Granted;

/// The result of an acquire while the store is unavailable: it does not answer by the deadline, it
/// answers that it failed (HTTP 5xx), or it has done so for a while and is not asked.
///
/// A [`LeasedLimiter`](crate::LeasedLimiter) first hands out the tokens that it holds.
///
/// Any other answer is an error under every setting: a limit that is short, contention and
/// throttling, a missing permission or table, a refusal for an unknown reason. Otherwise a missing
/// permission would fail open permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// A bucket starts with the store's last answer, or full. Each process has its own copy, so N
    /// processes may admit up to N times the balance. When the store answers again, the consumption
    /// is debited there, one sum for each bucket. This holds for 10,000 buckets at most; the
    /// consumption of further ones is not debited ([`Counters::uncommitted`](crate::Counters)). It
    /// is lost if the process ends, or drops its last limiter, before that. A request without an
    /// answer may have taken its tokens in the store nevertheless; they are then taken twice, the
    /// restrictive direction.
    Local,
}

/// States that a permit was granted without the store, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// The setting that granted it.
    pub policy: OnUnavailable,
    /// The reason why the store did not decide.
    pub cause: Cause,
}

/// The reason why the store did not decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The store did not answer this call by its deadline, or answered that it failed. The text is
    /// the error.
    Unanswered(Arc<str>),
    /// The store was not asked, because other calls were not answered.
    NotAsked {
        /// When it became unavailable, by the limiter's clock.
        since: EpochMillis,
    },
}

impl std::fmt::Display for Degraded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.cause {
            Cause::Unanswered(error) => write!(f, "granted without the store: {error}"),
            Cause::NotAsked { since } => {
                write!(f, "granted without the store, which has been unavailable since {since}")
            }
        }
    }
}

/// The store is unavailable and was not asked.
#[derive(Debug, thiserror::Error)]
#[error("unavailable since {since}: not asked until it answers a probe")]
pub(crate) struct NotAsked {
    since: EpochMillis,
}

/// The health of one store, shared by its limiters.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    circuit: CircuitBreaker,
    /// True once the store has answered a call: there is a connection.
    is_connected: AtomicBool,
    keeper: RecoveryTask,
    /// Made when a limiter is set to use it.
    local: OnceLock<Local>,
}

impl StoreHealth {
    pub(crate) fn new(breaker: BreakerConfig) -> Self {
        let (circuit, is_connected) = (CircuitBreaker::new(breaker), AtomicBool::new(false));
        Self { circuit, is_connected, keeper: RecoveryTask::default(), local: OnceLock::new() }
    }

    /// True if the store has ever answered.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// True if only probes ask the store.
    pub(crate) fn is_open(&self) -> bool {
        self.circuit.needs_probes()
    }

    fn local(&self) -> &Local {
        self.local.get_or_init(Local::default)
    }

    /// True if tokens were granted that the store does not know of.
    fn owes(&self) -> bool {
        self.local.get().is_some_and(|local| local.debts.are_some())
    }

    fn note_connection(&self) {
        if !self.is_connected() {
            self.is_connected.store(true, Ordering::Relaxed);
        }
    }

    fn not_asked(&self) -> NotAsked {
        NotAsked { since: self.circuit.opened_at() }
    }
}
