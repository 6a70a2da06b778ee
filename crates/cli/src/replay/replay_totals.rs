//! The results of the batches, added up.

use std::collections::HashSet;

use sluicegate_core::keys::ItemKey;
use sluicegate_processor::{Outcome, Quarantined};

/// The sums of the batches.
#[derive(Default)]
pub(super) struct ReplayTotals {
    pub(super) windows: HashSet<ItemKey>,
    pub(super) quarantined: Vec<Quarantined>,
    seen: HashSet<ItemKey>,
    pub(super) records: usize,
    pub(super) duplicates: u64,
    pub(super) partly_counted: u64,
    pub(super) write_units: f64,
}

impl ReplayTotals {
    pub(super) fn add(&mut self, outcome: &Outcome) {
        self.records += usize::try_from(outcome.report.records).unwrap_or(usize::MAX);
        self.duplicates += outcome.report.duplicates_dropped;
        self.partly_counted += outcome.report.partly_counted;
        self.write_units += outcome.report.write_units;
        self.windows.extend(outcome.window_keys.iter().cloned());
        for entry in &outcome.quarantined {
            if self.seen.insert(entry.key.clone()) {
                self.quarantined.push(entry.clone());
            }
        }
    }
}
