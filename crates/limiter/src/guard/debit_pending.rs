//! Debits the grants of an outage at the store, once the store answers again.

use std::sync::Arc;

use futures_util::future::{FutureExt as _, join_all};

use super::pending_debits::{PendingDebit, PendingDebits};
use super::store_guard::Guard;
use crate::error::AdjustError;
use crate::store::Correction;

impl Guard {
    /// Debits the pending sums at the store, until one of them must be tried again later.
    pub(super) async fn debit_pending(self: &Arc<Self>, pending_debits: &PendingDebits) {
        while pending_debits.are_some() {
            let next = pending_debits.next();
            // Boxed, or the type would exceed the default `recursion_limit` of other crates.
            let corrections =
                next.iter().map(|debit| self.debit_one(pending_debits, debit).boxed());
            let corrected = join_all(corrections).await;
            if corrected.contains(&false) {
                return;
            }
        }
    }

    /// Debits the sum of one bucket. False: the debit must be tried again.
    async fn debit_one(
        self: &Arc<Self>,
        pending_debits: &PendingDebits,
        debit: &PendingDebit,
    ) -> bool {
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
        if matches!(
            result,
            Err(AdjustError::Unavailable(_) | AdjustError::Contended | AdjustError::Setup(_))
        ) {
            pending_debits.postpone(id);
            return false;
        }
        if !pending_debits.remove(id) {
            return true;
        }
        match result {
            Ok(adjusted) if adjusted.dropped.is_empty() => {
                let now = self.store.now(&self.clock);
                self.health.local().note_debited(bucket, id, &pending.amounts, now);
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
