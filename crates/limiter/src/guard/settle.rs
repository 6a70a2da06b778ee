//! Telling a store that answers again what it missed.

use std::sync::Arc;

use futures_util::future::{FutureExt as _, join_all};

use super::guarded::Guard;
use super::pending_debits::{Debt, PendingDebits};
use crate::error::AdjustError;
use crate::store::Correction;

impl Guard {
    /// Debits the pending sums at the store, as long as it answers.
    pub(super) async fn settle(self: &Arc<Self>, debts: &PendingDebits) {
        while debts.are_some() {
            let next = debts.next();
            // Boxed, or the type would exceed the default `recursion_limit` of other crates.
            let corrections = next.iter().map(|debt| self.take_owed(debts, debt).boxed());
            let corrected = join_all(corrections).await;
            if corrected.contains(&false) {
                return;
            }
            self.health.keeper_is_alive();
        }
    }

    /// False if it must be tried again.
    async fn take_owed(self: &Arc<Self>, debts: &PendingDebits, debt: &Debt) -> bool {
        let Debt { id, bucket, owed } = debt;
        let correction = Correction {
            id,
            bucket,
            amounts: &owed.amounts,
            configuration: &owed.configuration,
            deadline: self.correction_time(None),
        };
        let result = self.correct(&correction).await;
        if matches!(
            result,
            Err(AdjustError::Unavailable(_) | AdjustError::Contended | AdjustError::Setup(_))
        ) {
            debts.postpone(id);
            return false;
        }
        if !debts.settle(id) {
            return true;
        }
        match result {
            Ok(adjusted) if adjusted.dropped.is_empty() => {
                self.health.local().note_settled(bucket, id, &owed.amounts);
                self.counters().committed.increment();
            }
            lost => {
                self.counters().uncommitted.increment();
                tracing::warn!(%bucket, ?lost, "consumption could not be taken from the store");
            }
        }
        true
    }
}
