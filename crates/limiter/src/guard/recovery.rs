//! The task that probes an unavailable store, and debits there what was granted meanwhile. It lives
//! as long as there is something to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::answer::is_answer;
use super::guarded::Guard;

/// The most probes in flight, evenly spaced if they hang until their deadline. A probe that hangs
/// must not keep the next one from finding the store available.
const PROBES_MAX: u32 = 8;

impl Guard {
    /// Starts the task, unless there is one.
    pub(super) fn keep(self: &Arc<Self>) {
        if self.health.claim_keeper() {
            let term = self.health.recovery.term.fetch_add(1, Ordering::Relaxed) + 1;
            tokio::spawn(keep(self.clone(), term));
        }
    }

    async fn probe(self: Arc<Self>) {
        let time = self.settings.connect_deadline;
        if is_answer(&self.store.check(&self.clock, time).await) {
            self.health.note_connection();
            self.health.circuit.probed();
        }
    }
}

/// Ends with the last clone of the limiter.
async fn keep(guard: Arc<Guard>, term: u64) {
    let outage = &guard.health;
    let every = outage.circuit.settings().probe_every;
    let mut sent_at = Instant::now();
    let mut rounds = interval_at(sent_at + every, every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut probes = JoinSet::new();
    loop {
        rounds.tick().await;
        while probes.try_join_next().is_some() {}
        let has_successor = outage.recovery.term.load(Ordering::Relaxed) != term;
        if has_successor || outage.is_abandoned.load(Ordering::Relaxed) {
            return;
        }
        outage.keeper_is_alive();
        // A round may come a little early.
        let is_time = sent_at.elapsed() + every / 2 >= guard.settings.connect_deadline / PROBES_MAX;
        if outage.circuit.needs_probes() && (is_time || probes.is_empty()) {
            sent_at = Instant::now();
            probes.spawn(guard.clone().probe());
        }
        if let Some(local) = outage.local.get().filter(|_| !outage.circuit.needs_probes()) {
            guard.settle(&local.debts).await;
        }
        if outage.release_keeper() {
            return;
        }
    }
}
