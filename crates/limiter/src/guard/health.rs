//! The health of a store, as one limiter and its clones know it, and the slot of the recovery task.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluicegate_core::EpochMillis;

use super::breaker::CircuitBreaker;
use super::breaker_config::BreakerConfig;
use super::local::LocalBuckets;

/// The recovery task works in rounds, one in each `probe_every`. After this many rounds without a
/// sign of life, callers take it for dead: its runtime may have ended.
const ROUNDS_UNHEARD: u32 = 20;

/// The store is unavailable and was not asked.
#[derive(Debug, thiserror::Error)]
#[error("unavailable since {}: not asked until it answers a probe", since.rfc3339())]
pub(crate) struct NotAsked {
    pub(super) since: EpochMillis,
}

/// The health of a store, as one limiter and its clones know it.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    pub(super) breaker: CircuitBreaker,
    /// True once the store has answered a call: there is a connection.
    is_connected: AtomicBool,
    /// The count of leasing's answered calls, as it stood when the last call failed.
    lease_answers: AtomicU64,
    /// True while the store is probed because a caller left.
    pub(super) is_probing_after_unfinished_call: AtomicBool,
    pub(super) recovery: RecoverySlot,
    /// True once the last clone of the limiter was dropped: no caller needs the store any more.
    pub(super) is_limiter_dropped: AtomicBool,
    /// The buckets of this process, made at their first use: with `OnUnavailable::Local` only.
    pub(super) local: OnceLock<LocalBuckets>,
}

/// The slot of the recovery task: at most one task at a time holds it.
#[derive(Debug, Default)]
pub(super) struct RecoverySlot {
    /// The task counts as alive until this time, in the breaker's milliseconds; 0: there is no
    /// task.
    until_ms: AtomicU64,
    /// The number of recovery tasks so far. A task that was taken for dead and lives ends itself
    /// once another one has replaced it.
    pub(super) term: AtomicU64,
}

impl StoreHealth {
    pub(crate) fn new(breaker: BreakerConfig) -> Self {
        Self {
            breaker: CircuitBreaker::new(breaker),
            is_connected: AtomicBool::new(false),
            lease_answers: AtomicU64::new(0),
            is_probing_after_unfinished_call: AtomicBool::new(false),
            recovery: RecoverySlot::default(),
            is_limiter_dropped: AtomicBool::new(false),
            local: OnceLock::new(),
        }
    }

    /// Takes in the number of leasing's calls that the store has answered so far. The breaker does
    /// not see the calls of leasing's background task. If the store answered any of them since the
    /// last failure, the earlier failures no longer count.
    pub(super) fn note_lease_answers(&self, answers: u64) {
        if self.lease_answers.swap(answers, Ordering::AcqRel) != answers {
            self.breaker.forgive();
        }
    }

    /// True if the store has ever answered.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    pub(super) fn local(&self) -> &LocalBuckets {
        self.local.get_or_init(LocalBuckets::default)
    }

    /// True if tokens were granted that are not yet debited at the store.
    pub(super) fn has_pending_debits(&self) -> bool {
        self.local.get().is_some_and(|local| local.pending_debits.are_some())
    }

    pub(super) fn note_connection(&self) {
        if !self.is_connected() {
            self.is_connected.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn not_asked_error(&self) -> NotAsked {
        NotAsked { since: self.breaker.opened_at() }
    }

    /// True if a recovery task has work.
    fn needs_recovery(&self) -> bool {
        self.breaker.needs_probes() || self.has_pending_debits()
    }

    fn recovery_until_ms(&self) -> u64 {
        let time = self.breaker.settings().probe_every.saturating_mul(ROUNDS_UNHEARD);
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.breaker.now_ms().saturating_add(time_ms).max(1)
    }

    /// Notes a sign of life of the task.
    pub(super) fn note_recovery_alive(&self) {
        self.recovery.until_ms.store(self.recovery_until_ms(), Ordering::SeqCst);
    }

    /// True if there is a task, as far as is known without reading the clock.
    pub(super) fn has_recovery(&self) -> bool {
        self.recovery.until_ms.load(Ordering::SeqCst) > 0
    }

    /// True for the caller that must start the task.
    pub(super) fn take_recovery_slot(&self) -> bool {
        let slot = &self.recovery.until_ms;
        let until_ms = slot.load(Ordering::SeqCst);
        if until_ms > 0 && until_ms >= self.breaker.now_ms() {
            return false;
        }
        let next_ms = self.recovery_until_ms();
        slot.compare_exchange(until_ms, next_ms, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Releases the slot if there is no work; true: the task must end. If work comes up meanwhile,
    /// the task claims the slot again. If another task was faster, that task does the work.
    pub(super) fn release_recovery(&self) -> bool {
        if self.needs_recovery() {
            return false;
        }
        self.recovery.until_ms.store(0, Ordering::SeqCst);
        !(self.needs_recovery() && self.take_recovery_slot())
    }
}
