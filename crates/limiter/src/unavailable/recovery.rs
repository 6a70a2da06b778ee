//! The task that looks for a store that is away, and tells it afterwards what it missed. It lives as
//! long as there is something to do.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::StoreHealth;
use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::store::Store;

/// Probes under way at most, evenly apart where they hang until their deadline. One that does must
/// not keep the next from finding the store back.
const PROBES_MAX: u32 = 8;
/// A task that was not heard of for so many of its rounds ended with its runtime.
const ROUNDS_UNHEARD: u32 = 20;

/// Whether there is such a task.
#[derive(Debug, Default)]
pub(super) struct RecoveryTask {
    /// Until when the last one is believed to live, in the circuit's milliseconds; 0: there is none.
    until_ms: AtomicU64,
    /// Counts them: one that was taken for dead ends where another looks.
    term: AtomicU64,
}

impl StoreHealth {
    /// Whether there is something to do.
    fn needs_keeper(&self) -> bool {
        self.circuit.needs_probes() || self.owes()
    }

    fn keeper_until_ms(&self) -> u64 {
        let time = self.circuit.settings().probe_every.saturating_mul(ROUNDS_UNHEARD);
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.circuit.now_ms().saturating_add(time_ms).max(1)
    }

    /// The task says that it lives.
    pub(super) fn keeper_is_alive(&self) {
        self.keeper.until_ms.store(self.keeper_until_ms(), Ordering::SeqCst);
    }

    /// Whether somebody looks for the store, as far as is known without a look at the time.
    pub(super) fn has_keeper(&self) -> bool {
        self.keeper.until_ms.load(Ordering::SeqCst) > 0
    }

    /// True for the one who is to start the task.
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

    /// Whether the task may end; what came up meanwhile keeps it, or finds it gone.
    fn release_keeper(&self) -> bool {
        if self.needs_keeper() {
            return false;
        }
        self.keeper.until_ms.store(0, Ordering::SeqCst);
        !(self.needs_keeper() && self.claim_keeper())
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Sees to it that somebody looks for the store.
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

/// Ends with the last limiter, too: not with the one that started it, which may have been made for a
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
        // This task and its probes are no users.
        if has_successor || limiter.holders() == 1 + probes.len() {
            return;
        }
        outage.keeper_is_alive();
        // On a round that is a little early, too.
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
