//! The counters of leasing, for the recorder of the `metrics` facade that the program installs.
//!
//! Takes count decisions, in the number that they change anyway. The counts are reported when the
//! background task reads the ledger.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{counter, gauge, histogram};
use sluicegate_core::Amounts;

use super::limit_ledger::unsigned;

/// Counts since the limiter was made.
#[derive(Debug, Default)]
pub(super) struct Meter {
    decisions: AtomicU64,
    writes: AtomicU64,
}

impl Meter {
    /// Reports decisions.
    pub(super) fn count(&self, decisions: u64) {
        if decisions > 0 {
            counter!("sluicegate_leased_decisions_total").increment(decisions);
            self.decisions.fetch_add(decisions, Ordering::Relaxed);
            self.ratio();
        }
    }

    /// Counts a request that found too few tokens and waits for a lease.
    pub(super) fn waited(&self) {
        counter!("sluicegate_lease_waits_total").increment(1);
    }

    pub(super) fn wrote(&self, attempts: u32) {
        counter!("sluicegate_lease_writes_total").increment(attempts.into());
        self.writes.fetch_add(attempts.into(), Ordering::Relaxed);
    }

    /// Counts the tokens that were leased, and those that went back unused.
    pub(super) fn leased(&self, leased: &Amounts, returned: &Amounts) {
        counter!("sluicegate_leased_tokens_total").increment(tokens(leased));
        counter!("sluicegate_unused_tokens_total").increment(tokens(returned));
    }

    /// Reports the age of the oldest use that a write tells the store of.
    #[expect(clippy::cast_precision_loss, reason = "an age")]
    pub(super) fn commit_age(&self, age_ms: Option<i64>) {
        if let Some(age_ms) = age_ms {
            histogram!("sluicegate_commit_age_seconds").record(age_ms as f64 / 1_000.0);
        }
    }

    pub(super) fn ambiguous(&self) {
        counter!("sluicegate_lease_ambiguous_total").increment(1);
    }

    /// Reports the share of decisions that needed no write.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    fn ratio(&self) {
        let (decisions, writes) = (self.decisions(), self.writes());
        gauge!("sluicegate_lease_write_reduction")
            .set(1.0 - writes as f64 / decisions.max(1) as f64);
    }

    pub(super) fn decisions(&self) -> u64 {
        self.decisions.load(Ordering::Relaxed)
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }
}

/// The amounts of all limits together, in whole tokens.
fn tokens(amounts: &Amounts) -> u64 {
    amounts.values().map(|milli| unsigned(milli.get()) / 1_000).sum()
}
