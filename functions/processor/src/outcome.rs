//! Combines the results of the parts of an event into the answer to Lambda.

use std::collections::HashSet;
use std::sync::Arc;

use aws_lambda_events::event::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use serde_json::value::RawValue;
use sluicegate_core::{RecordDeltas, SequenceNumber, StreamRecord, WindowFold};

use crate::entry::Entry;
use crate::quarantine::PutOutcome;
use crate::refusal::Refusal;
use crate::report::{Failure, HandleError, Outcome, Quarantined, Report};
use crate::usage::Settled;

/// The outcome of an event while its parts arrive.
pub(crate) struct OutcomeBuilder {
    outcome: Outcome,
    /// Records that some window had counted before, by their addresses in memory: a record is in
    /// the windows of every kind and is reported once.
    dropped: HashSet<usize>,
}

impl OutcomeBuilder {
    pub(crate) fn new(report: Report) -> Self {
        let outcome = Outcome {
            response: Ok(DynamoDbEventResponse::default()),
            report,
            quarantined: Vec::new(),
            failures: Vec::new(),
            windows: Vec::new(),
        };
        Self { outcome, dropped: HashSet::new() }
    }

    pub(crate) fn entry(&mut self, entry: &Entry, result: Result<PutOutcome, Refusal>) {
        match result {
            Ok(PutOutcome { is_new, write_units }) => {
                self.outcome.report.write_units += write_units;
                let (key, reason) = (entry.key.clone(), entry.reason.clone());
                self.quarantined([Quarantined { key, reason, is_new }]);
            }
            Err(refusal) => {
                self.failure(Failure { first: entry.sequence(), reason: refusal.reason() });
            }
        }
    }

    pub(crate) fn window(&mut self, fold: &WindowFold<'_>, settled: Settled) {
        let report = &mut self.outcome.report;
        report.windows_written += settled.writes;
        report.write_units += settled.write_units;
        let dropped = settled.duplicates.iter().map(|&n| &fold.records()[n]);
        let address = |record: &Arc<RecordDeltas<'_>>| Arc::as_ptr(record) as usize;
        self.dropped.extend(dropped.map(address));
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
        tracing::warn!(first, reason = failure.reason, "a later delivery must repeat this write");
        self.outcome.report.retryable_failures += 1;
        self.outcome.failures.push(failure);
    }

    pub(crate) fn into_outcome(mut self, records: &[Box<RawValue>]) -> Outcome {
        self.outcome.report.duplicates_dropped += count(self.dropped.len());
        if !self.outcome.failures.is_empty() {
            self.outcome.response = self.begin_again_at(records).map(|lowest| {
                let mut failure = DynamoDbBatchItemFailure::default();
                failure.item_identifier = Some(lowest.to_string());
                let mut response = DynamoDbEventResponse::default();
                response.batch_item_failures.push(failure);
                response
            });
        }
        self.outcome
    }

    /// The start of the next delivery: the lowest position that failed. In a batch that is not in
    /// the order of one stream (no mapping makes one) it is the batch's first record.
    fn begin_again_at(&self, records: &[Box<RawValue>]) -> Result<SequenceNumber, HandleError> {
        let unidentified =
            |failure: &Failure| HandleError::Unidentified { reason: failure.reason.clone() };
        let mut failures = self.outcome.failures.iter();
        let (mut lowest, mut any) = (None, None);
        for failure in &mut failures {
            let first = failure.first.ok_or_else(|| unidentified(failure))?;
            lowest = Some(lowest.map_or(first, |known: SequenceNumber| known.min(first)));
            any = Some(failure);
        }
        let positions = records.iter().map(|record| StreamRecord::position_of(record.get()));
        let positions: Vec<_> = positions.collect();
        let in_order = positions.windows(2).all(|pair| {
            let [(stream, before), (next_stream, after)] = pair else { return false };
            stream == next_stream && before <= after
        });
        let at =
            if in_order { lowest } else { positions.first().and_then(|(_, sequence)| *sequence) };
        let reason = any.map_or_else(String::new, |failure| failure.reason.clone());
        at.ok_or(HandleError::Unidentified { reason })
    }
}

/// A length as a metric value.
pub(crate) fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
