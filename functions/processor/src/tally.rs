//! Adding up what became of the parts of an event, into the answer that Lambda gets.

use std::collections::HashSet;
use std::sync::Arc;

use aws_lambda_events::event::streams::DynamoDbBatchItemFailure;
use serde_json::value::RawValue;
use sluicegate_core::{RecordDeltas, SequenceNumber, StreamRecord, WindowFold};

use crate::processor::HandleError;
use crate::quarantine::Entry;
use crate::report::{Failure, Outcome, Quarantined, Report};
use crate::store::Refusal;
use crate::usage::Settled;

/// The outcome of an event while its parts come in.
pub(crate) struct Tally {
    outcome: Outcome,
    /// Records that some window had counted before, by where they are in memory: a record is in the
    /// windows of every kind and is told once.
    dropped: HashSet<usize>,
}

impl Tally {
    pub(crate) fn new(report: Report) -> Self {
        Self { outcome: Outcome { report, ..Outcome::default() }, dropped: HashSet::new() }
    }

    pub(crate) fn entry(&mut self, entry: &Entry, result: Result<(bool, f64), Refusal>) {
        match result {
            Ok((is_new, write_units)) => {
                self.outcome.report.write_units += write_units;
                let (key, reason) = (entry.key.clone(), entry.reason.clone());
                self.quarantined([Quarantined { key, reason, is_new }]);
            }
            Err(refusal) => {
                self.failure(Failure { first: entry.sequence(), reason: refusal.reason() });
            }
        }
    }

    pub(crate) fn window(&mut self, fold: &WindowFold, settled: Settled) {
        let report = &mut self.outcome.report;
        report.windows_written += settled.writes;
        report.write_units += settled.write_units;
        if let Some(position) = settled.duplicates_to {
            let dropped = fold.records().iter().take_while(|record| record.sequence <= position);
            let address = |record: &Arc<RecordDeltas>| Arc::as_ptr(record) as usize;
            self.dropped.extend(dropped.map(address));
        }
        self.outcome.windows.push(fold.key());
        self.quarantined(settled.quarantined);
        if let Some(failure) = settled.failure {
            self.failure(failure);
        }
    }

    fn quarantined(&mut self, entries: impl IntoIterator<Item = Quarantined>) {
        for entry in entries {
            if entry.is_new {
                self.outcome.report.quarantined += 1;
                tracing::error!(key = entry.key.sk(), reason = entry.reason, "record quarantined");
            }
            self.outcome.quarantined.push(entry);
        }
    }

    fn failure(&mut self, failure: Failure) {
        let first = failure.first.map(|first| first.to_string());
        tracing::warn!(first, reason = failure.reason, "write to be repeated by a later delivery");
        self.outcome.report.retryable_failures += 1;
        self.outcome.failures.push(failure);
    }

    pub(crate) fn into_outcome(
        mut self,
        records: &[Box<RawValue>],
    ) -> Result<Outcome, HandleError> {
        if !self.outcome.failures.is_empty() {
            let mut failure = DynamoDbBatchItemFailure::default();
            failure.item_identifier = Some(self.lowest(records)?.to_string());
            self.outcome.response.batch_item_failures.push(failure);
        }
        self.outcome.report.duplicates_dropped += count(self.dropped.len());
        Ok(self.outcome)
    }

    /// Where the next delivery must begin: at the lowest position that failed. In a batch that is
    /// not in the order of one stream (no mapping makes one) that is the batch's first record.
    fn lowest(&self, records: &[Box<RawValue>]) -> Result<SequenceNumber, HandleError> {
        let positions = records.iter().map(|record| StreamRecord::position_of(record.get()));
        let positions: Vec<_> = positions.collect();
        let in_order = positions.windows(2).all(|pair| {
            let [(stream, before), (next_stream, after)] = pair else { return false };
            stream == next_stream && before <= after
        });
        let failures = &self.outcome.failures;
        let nameless = failures.iter().any(|failure| failure.first.is_none());
        let lowest = match failures.iter().filter_map(|failure| failure.first).min() {
            _ if nameless => None,
            Some(lowest) if in_order => Some(lowest),
            _ => positions.first().and_then(|(_, sequence)| *sequence),
        };
        lowest.ok_or_else(|| {
            let reason = failures.first().map(|failure| failure.reason.clone());
            HandleError::Unidentified { reason: reason.unwrap_or_default() }
        })
    }
}

/// A length as a figure.
pub(crate) fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
