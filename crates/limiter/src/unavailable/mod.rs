//! What is done while the store does not answer.
//!
//! Everything that a limiter asks of its store goes through here. The store's answer is the answer;
//! only where there is none, the limiter's [`OnUnavailable`] decides. Every call has a deadline, and
//! a [`BreakerConfig`] spares the calls of an outage even that.

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

/// The store is away and was not asked.
#[derive(Debug, thiserror::Error)]
#[error("away since {since}: not asked until it answers a probe")]
pub(crate) struct NotAsked {
    since: EpochMillis,
}

/// What the limiters of one store know of its absence.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    circuit: CircuitBreaker,
    /// The store has answered somebody: there is a connection.
    is_connected: AtomicBool,
    keeper: RecoveryTask,
    /// Made where somebody is told to use it.
    local: OnceLock<Local>,
}

impl StoreHealth {
    pub(crate) fn new(breaker: BreakerConfig) -> Self {
        let (circuit, is_connected) = (CircuitBreaker::new(breaker), AtomicBool::new(false));
        Self { circuit, is_connected, keeper: RecoveryTask::default(), local: OnceLock::new() }
    }

    /// Whether the store has ever answered.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Whether nobody but a probe asks the store.
    pub(crate) fn is_open(&self) -> bool {
        self.circuit.needs_probes()
    }

    fn local(&self) -> &Local {
        self.local.get_or_init(Local::default)
    }

    /// Whether something was granted that the store does not know of.
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
