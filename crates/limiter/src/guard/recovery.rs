//! The task that probes an unavailable store, and debits there the tokens that were granted
//! meanwhile. The task ends when there is no work.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{FutureExt as _, join_all};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::pending_debits::PendingDebit;
use super::store_guard::Guard;
use crate::error::AdjustError;
use crate::store::Correction;

/// While earlier probes hang, at most about this many are sent within one connect deadline. A probe
/// ends by that deadline, so no more are in flight. A probe that hangs must not delay the next one,
/// which may find the store available.
const PROBES_MAX: u32 = 8;

impl Guard {
    /// Starts the recovery task, unless there is one.
    pub(super) fn start_recovery(self: &Arc<Self>) {
        if self.health.take_recovery_slot() {
            let term = self.health.recovery.term.fetch_add(1, Ordering::Relaxed) + 1;
            tokio::spawn(recover(self.clone(), term));
        }
    }

    /// Debits the pending sums at the store, until one of them must be tried again later.
    async fn debit_pending(self: &Arc<Self>) {
        while self.health.has_pending_debits() {
            let next = self.health.local().pending_debits.next();
            // Boxed, or the type would exceed the default `recursion_limit` of other crates.
            let corrections = next.iter().map(|debit| self.debit_one(debit).boxed());
            let corrected = join_all(corrections).await;
            if corrected.contains(&false) {
                return;
            }
        }
    }

    /// Debits the sum of one bucket. False: the debit must be tried again.
    async fn debit_one(self: &Arc<Self>, debit: &PendingDebit) -> bool {
        let PendingDebit { id, bucket, pending } = debit;
        let correction = Correction {
            mark: None,
            id,
            bucket,
            amounts: &pending.amounts,
            configuration: &pending.configuration,
            // An attempt before this one may have ended with its runtime.
            is_repeated: true,
            deadline: self.correction_deadline(None),
        };
        let result = self.correct(&correction).await;
        let local = self.health.local();
        if matches!(
            result,
            Err(AdjustError::Unavailable(_) | AdjustError::Contended | AdjustError::Setup(_))
        ) {
            local.pending_debits.postpone(id);
            return false;
        }
        if !local.pending_debits.remove(id) {
            return true;
        }
        match result {
            Ok(adjusted) if adjusted.dropped.is_empty() => {
                let now = self.store.now(&self.clock);
                local.note_debited(bucket, id, &pending.amounts, now);
                self.counters().outage_debits.increment();
            }
            lost => {
                self.counters().outage_debits_lost.increment();
                tracing::warn!(%bucket, ?lost, "consumption could not be taken from the store");
            }
        }
        true
    }
}

/// Probes and debits until there is no work. Ends early with the last clone of the limiter.
async fn recover(guard: Arc<Guard>, term: u64) {
    let health = &guard.health;
    let every = health.breaker.settings().probe_every;
    let mut sent_at = Instant::now();
    let mut rounds = interval_at(sent_at + every, every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Neither probes nor debits may hold up the rounds: after some rounds without a sign of life
    // this task counts as dead, and another one would send the same debits.
    let (mut probes, mut debits) = (JoinSet::new(), JoinSet::new());
    loop {
        rounds.tick().await;
        while probes.try_join_next().is_some() {}
        while debits.try_join_next().is_some() {}
        let has_successor = health.recovery.term.load(Ordering::Relaxed) != term;
        if has_successor || health.is_limiter_dropped.load(Ordering::Relaxed) {
            return;
        }
        health.note_recovery_alive();
        // A round may come a little early.
        let is_time = sent_at.elapsed() + every / 2 >= guard.settings.connect_deadline / PROBES_MAX;
        if health.breaker.needs_probes() && (is_time || probes.is_empty()) {
            sent_at = Instant::now();
            let guard = guard.clone();
            probes.spawn(async move { guard.probe().await });
        }
        if debits.is_empty() && health.has_pending_debits() && !health.breaker.needs_probes() {
            let guard = guard.clone();
            debits.spawn(async move { guard.debit_pending().await });
        }
        if health.release_recovery() {
            return;
        }
    }
}
