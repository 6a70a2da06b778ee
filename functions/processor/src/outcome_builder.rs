//! Combines the results of the parts of an event into the answer to Lambda.

use std::collections::HashSet;
use std::sync::Arc;

use aws_lambda_events::event::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use serde_json::value::RawValue;
use sluicegate_core::{GroupedBatch, RecordDeltas, SequenceNumber, StreamRecord, WindowGroup};

use crate::new_quarantine_entry::NewQuarantineEntry;
use crate::outbox::Deliveries;
use crate::outcome::{Failure, HandleError, Outcome, Quarantined};
use crate::quarantine::PutOutcome;
use crate::report::Report;
use crate::window_writer::WindowResult;
use crate::write_error::WriteError;

/// The outcome of an event while its parts arrive.
pub(crate) struct OutcomeBuilder {
    outcome: Outcome,
    /// Records that an earlier delivery, or an earlier write of this delivery, had counted in some
    /// window or put into quarantine. A record is in one window of every kind, and the set counts
    /// it once.
    duplicates: HashSet<usize>,
}

/// The identity of a record: the address of its JSON.
fn address(record: &Arc<RecordDeltas<'_>>) -> usize {
    record.json.as_ptr() as usize
}

/// The records of a group that an earlier delivery, or an earlier write of this one, had finished
/// in its window.
fn duplicates_of<'a>(
    (group, result): (&'a WindowGroup<'_>, &'a WindowResult),
) -> impl Iterator<Item = usize> + use<'a> {
    result.duplicates.iter().map(|&n| address(&group.records()[n]))
}

impl OutcomeBuilder {
    pub(crate) fn new(report: Report) -> Self {
        let outcome = Outcome {
            response: Ok(DynamoDbEventResponse::default()),
            report,
            quarantined: Vec::new(),
            failures: Vec::new(),
            window_keys: Vec::new(),
        };
        Self { outcome, duplicates: HashSet::new() }
    }

    /// Adds groups of records, with the results of writing their windows.
    pub(crate) fn add_windows(
        &mut self,
        (grouped, results): (GroupedBatch<'_>, Vec<WindowResult>),
    ) {
        self.outcome.report.duplicates_dropped += as_u64(grouped.duplicates);
        // Counted now in one window, and skipped in another.
        let mut partly_counted = HashSet::new();
        let duplicates = || grouped.groups.iter().zip(&results).flat_map(duplicates_of);
        if duplicates().next().is_some() {
            let all: HashSet<_> = duplicates().collect();
            // If a group has a failure or quarantined records, its result does not show which of
            // its records were counted.
            let shows_counted =
                |result: &WindowResult| result.failure.is_none() && result.quarantined.is_empty();
            let written = grouped.groups.iter().zip(&results);
            for (group, result) in written.filter(|(_, result)| shows_counted(result)) {
                let is_counted = |n: &usize| result.duplicates.binary_search(n).is_err();
                let counted = (0..group.records().len()).filter(is_counted);
                let counted = counted.map(|n| address(&group.records()[n]));
                partly_counted.extend(counted.filter(|record| all.contains(record)));
            }
        }
        self.outcome.report.partly_counted += as_u64(partly_counted.len());
        for (group, result) in grouped.groups.iter().zip(results) {
            self.add_window(group, result);
        }
    }

    pub(crate) fn add_entry(
        &mut self,
        entry: &NewQuarantineEntry,
        result: Result<PutOutcome, WriteError>,
    ) {
        match result {
            Ok(PutOutcome { is_new, write_units }) => {
                self.outcome.report.write_units += write_units;
                let (key, reason) = (entry.key.clone(), entry.reason.clone());
                self.add_quarantined([Quarantined { key, reason, is_new }]);
            }
            Err(error) => {
                self.add_failure(Failure { first: entry.sequence(), reason: error.reason() });
            }
        }
    }

    pub(crate) const fn add_deliveries(&mut self, deliveries: Deliveries) {
        self.outcome.report.alerts_sent += deliveries.sent;
        self.outcome.report.alerts_failed += deliveries.failed + deliveries.given_up;
        self.outcome.report.alerts_given_up += deliveries.given_up;
    }

    /// The table could not be asked for the alerts that wait. No record has to come again.
    pub(crate) fn alerts_not_read(&mut self, reason: String) {
        tracing::warn!(reason, "the alerts that wait could not be read");
        self.outcome.response = Err(HandleError::AlertsNotRead { reason });
    }

    fn add_window(&mut self, group: &WindowGroup<'_>, result: WindowResult) {
        let report = &mut self.outcome.report;
        report.window_updates += result.writes;
        report.write_units += result.write_units;
        report.alerts += result.alerts;
        self.duplicates.extend(duplicates_of((group, &result)));
        self.outcome.window_keys.push(group.key());
        self.add_quarantined(result.quarantined);
        if let Some(failure) = result.failure {
            self.add_failure(failure);
        }
    }

    fn add_quarantined(&mut self, entries: impl IntoIterator<Item = Quarantined>) {
        for entry in entries {
            if entry.is_new {
                self.outcome.report.quarantined += 1;
                tracing::error!(key = entry.key.sk(), reason = entry.reason, "record quarantined");
            }
            self.outcome.quarantined.push(entry);
        }
    }

    fn add_failure(&mut self, failure: Failure) {
        let first = failure.first.map(|first| first.to_string());
        tracing::warn!(first, reason = failure.reason, "a later delivery must repeat this write");
        self.outcome.report.retryable_failures += 1;
        self.outcome.failures.push(failure);
    }

    pub(crate) fn into_outcome(mut self, records: &[Box<RawValue>]) -> Outcome {
        self.outcome.report.duplicates_dropped += as_u64(self.duplicates.len());
        if !self.outcome.failures.is_empty() {
            self.outcome.response = self.next_delivery_start(records).map(|start| {
                let mut failure = DynamoDbBatchItemFailure::default();
                failure.item_identifier = Some(start.to_string());
                let mut response = DynamoDbEventResponse::default();
                response.batch_item_failures.push(failure);
                response
            });
        }
        self.outcome
    }

    /// The position at which Lambda must begin the next delivery. For a batch in the order of one
    /// stream, as event source mappings deliver it, this is the lowest position that failed. For
    /// any other batch, it is the position of the first record. A record without a readable
    /// position breaks the order if it follows a record with a position.
    ///
    /// # Errors
    /// [`HandleError::NoPosition`] if the record of a failure has no position, or if the first
    /// record has none and must be reported.
    fn next_delivery_start(
        &self,
        records: &[Box<RawValue>],
    ) -> Result<SequenceNumber, HandleError> {
        let no_position =
            |failure: &Failure| HandleError::NoPosition { reason: failure.reason.clone() };
        let failures = &self.outcome.failures;
        let firsts =
            failures.iter().map(|failure| failure.first.ok_or_else(|| no_position(failure)));
        let firsts = firsts.collect::<Result<Vec<_>, _>>()?;
        let positions =
            records.iter().map(|record| StreamRecord::stream_and_sequence_of(record.get()));
        let positions: Vec<_> = positions.collect();
        let in_order = positions.is_sorted_by(|(stream, before), (next_stream, after)| {
            stream == next_stream && before <= after
        });
        let at = match in_order {
            true => firsts.into_iter().min(),
            false => positions.first().and_then(|(_, sequence)| *sequence),
        };
        let reason = failures.last().map_or_else(String::new, |failure| failure.reason.clone());
        at.ok_or(HandleError::NoPosition { reason })
    }
}

/// A length as a metric value.
pub(crate) fn as_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
