//! The task that probes an unavailable store, and debits there what was granted meanwhile. It lives
//! as long as there is something to do.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::StoreHealth;
use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::store::Store;

/// The most probes in flight, evenly spaced if they hang until their deadline. A probe that hangs
/// must not keep the next one from finding the store available.
const PROBES_MAX: u32 = 8;
/// A task that gave no sign of life for this many rounds ended with its runtime.
const ROUNDS_UNHEARD: u32 = 20;

/// Says if there is a recovery task.
#[derive(Debug, Default)]
pub(super) struct RecoveryTask {
    /// The time until which the last task is believed to live, in the breaker's milliseconds; 0:
    /// there is none.
    until_ms: AtomicU64,
    /// Counts the tasks: one that was taken for dead ends if it has a successor.
    term: AtomicU64,
}

impl StoreHealth {
    /// True if there is something to do.
    fn needs_keeper(&self) -> bool {
        self.circuit.needs_probes() || self.owes()
    }

    fn keeper_until_ms(&self) -> u64 {
        let time = self.circuit.settings().probe_every.saturating_mul(ROUNDS_UNHEARD);
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.circuit.now_ms().saturating_add(time_ms).max(1)
    }

    /// Notes that the task lives.
    pub(super) fn keeper_is_alive(&self) {
        self.keeper.until_ms.store(self.keeper_until_ms(), Ordering::SeqCst);
    }

    /// True if there is a task, as far as is known without reading the clock.
    pub(super) fn has_keeper(&self) -> bool {
        self.keeper.until_ms.load(Ordering::SeqCst) > 0
    }

    /// True for the caller that must start the task.
    fn claim_keeper(&self) -> bool {
        let until_ms = self.keeper.until_ms.load(Ordering::SeqCst);
        let is_alive = until_ms > 0 && until_ms >= self.circuit.now_ms();
        !is_alive
            && self
                .keeper
                .until_ms
                .compare_exchange(
                    until_ms,
                    self.keeper_until_ms(),
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// True if the task may end. If work came up meanwhile, either this task stays or its successor
    /// finds the place free.
    fn release_keeper(&self) -> bool {
        if self.needs_keeper() {
            return false;
        }
        self.keeper.until_ms.store(0, Ordering::SeqCst);
        !(self.needs_keeper() && self.claim_keeper())
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Starts the task, unless there is one.
    pub(super) fn keep(&self) {
        if self.outage().claim_keeper() {
            let term = self.outage().keeper.term.fetch_add(1, Ordering::Relaxed) + 1;
            tokio::spawn(keep(self.clone(), term));
        }
    }

    async fn probe(self) {
        let time = self.connect_time();
        if super::call::is_answer(&self.store().check(self.clock(), time).await) {
            self.outage().note_connection();
            self.outage().circuit.probed();
        }
    }
}

/// Ends with the last limiter. Not with the one that started it, which may have been made for a
/// single request.
async fn keep<S: Store, C: Clock>(limiter: Limiter<S, C>, term: u64) {
    let outage = limiter.outage();
    let every = outage.circuit.settings().probe_every;
    let mut sent_at = Instant::now();
    let mut rounds = interval_at(sent_at + every, every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut probes = JoinSet::new();
    loop {
        rounds.tick().await;
        while probes.try_join_next().is_some() {}
        let has_successor = outage.keeper.term.load(Ordering::Relaxed) != term;
        // This task and its probes hold limiters too.
        if has_successor || limiter.holders() == 1 + probes.len() {
            return;
        }
        outage.keeper_is_alive();
        // A round may come a little early.
        let is_time = sent_at.elapsed() + every / 2 >= limiter.connect_time() / PROBES_MAX;
        if outage.circuit.needs_probes() && (is_time || probes.is_empty()) {
            sent_at = Instant::now();
            probes.spawn(limiter.clone().probe());
        }
        if let Some(local) = outage.local.get().filter(|_| !outage.circuit.needs_probes()) {
            limiter.settle(&local.debts).await;
        }
        if outage.release_keeper() {
            return;
        }
    }
}
