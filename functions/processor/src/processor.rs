//! One event from records to written windows.

use std::collections::{HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lambda_events::event::streams::DynamoDbBatchItemFailure;
use aws_sdk_dynamodb::Client;
use futures_util::{StreamExt, stream};
use serde_json::value::RawValue;
use sluicegate_core::keys::QuarantineId;
use sluicegate_core::{
    Batch, RecordDeltas, SequenceNumber, StreamLabel, StreamRecord, WindowFold, fold,
};
use tokio::time::Instant;

use crate::quarantine::{self, ENTRIES_PER_TRANSACTION, Entry, Passed};
use crate::report::{Failure, Outcome, Quarantined, Report};
use crate::settings::Settings;
use crate::store::Refusal;
use crate::usage::{self, Counted};

/// Writes under way at once: enough to hide the latency of a batch of a hundred windows, few enough
/// not to throttle a fresh on-demand table or to need many connections.
const WRITES_AT_ONCE: usize = 16;
/// How often a window may be found to have moved while its records are being passed over.
const RACES_MAX: usize = 5;

/// Counts the records of stream events in usage windows; cheap to clone.
#[derive(Debug, Clone)]
pub struct Processor {
    client: Client,
    settings: Settings,
}

/// A failure that no position can report: the whole event must be delivered again.
#[derive(Debug, thiserror::Error)]
pub enum HandleError {
    /// A record without a readable position could not be put into quarantine.
    #[error(
        "a record without a sequence number could not be put into quarantine, so the whole batch is to be retried: {reason}"
    )]
    Unidentified {
        /// What DynamoDB answered.
        reason: String,
    },
}

impl Processor {
    /// A processor that writes to the table of `settings` through `client`.
    #[must_use]
    pub const fn new(client: Client, settings: Settings) -> Self {
        Self { client, settings }
    }

    /// The settings it was made with.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Counts the records of one event. Writes are repeated until `deadline`; what could not be
    /// written by then is reported in the outcome's response.
    ///
    /// # Errors
    /// [`HandleError`] when a failure concerns a record that has no position to report.
    pub async fn handle(
        &self,
        records: &[Box<RawValue>],
        deadline: Instant,
    ) -> Result<Outcome, HandleError> {
        let batch = Batch::read(records);
        let odd: Vec<Entry> = batch.odd.into_iter().map(Entry::of_record).collect();
        let deltas = batch.counted.iter().map(|record| record.deltas.len()).sum();
        let folded = fold(batch.counted, &self.settings.windows);
        let mut tally = Tally::new(Report {
            records: count(records.len()),
            deltas: count(deltas),
            duplicates_dropped: count(folded.duplicates),
            record_age_ms: batch.oldest_s.map(age_ms),
            ..Report::default()
        });
        // By index: a closure over references would keep this future from being `Send` for callers.
        let entries = (0..odd.len()).map(|n| self.keep(&odd[n], deadline));
        let windows =
            (0..folded.windows.len()).map(|n| self.write(&folded.windows[n], records, deadline));
        let (kept, written) = tokio::join!(bounded(entries), bounded(windows));
        for (entry, result) in odd.iter().zip(kept) {
            tally.entry(entry, result);
        }
        for (fold, written) in folded.windows.iter().zip(written) {
            tally.window(fold, written);
        }
        tally.into_outcome(folded.windows.iter().map(WindowFold::key).collect())
    }

    async fn keep(&self, entry: &Entry, deadline: Instant) -> Result<(bool, f64), Refusal> {
        quarantine::put(&self.client, &self.settings, entry, deadline).await
    }

    /// Counts one window; records that it cannot take go to quarantine instead.
    async fn write(
        &self,
        fold: &WindowFold,
        records: &[Box<RawValue>],
        deadline: Instant,
    ) -> Written {
        let mut written = Written::default();
        for _ in 0..RACES_MAX {
            match usage::count(&self.client, &self.settings, fold, deadline).await {
                Counted::Done { known, wrote, write_units } => {
                    written.known = written.known.or(known);
                    written.wrote = wrote;
                    written.write_units += write_units;
                    return written;
                }
                Counted::Refused { known, refusal: Refusal::Invalid(reason), write_units } => {
                    written.known = written.known.or(known);
                    written.write_units += write_units;
                    match self
                        .pass_over(fold, known, &reason, records, deadline, &mut written)
                        .await
                    {
                        Ok(true) => return written,
                        Ok(false) => {}
                        Err(refusal) => return written.failed(fold, known, refusal),
                    }
                }
                Counted::Refused { known, refusal, write_units } => {
                    written.write_units += write_units;
                    written.known = written.known.or(known);
                    return written.failed(fold, known, refusal);
                }
            }
        }
        let known = written.known;
        written.failed(fold, known, Refusal::Transient("the window kept moving".to_owned()))
    }

    /// Keeps the records after `known` in quarantine and moves the window's watermark past them;
    /// false when the watermark had moved meanwhile.
    async fn pass_over(
        &self,
        fold: &WindowFold,
        known: Option<SequenceNumber>,
        reason: &str,
        records: &[Box<RawValue>],
        deadline: Instant,
        written: &mut Written,
    ) -> Result<bool, Refusal> {
        let texts: HashMap<(StreamLabel, SequenceNumber), &str> = records
            .iter()
            .filter_map(|raw| Some((StreamRecord::position_of(raw.get())?, raw.get())))
            .collect();
        for chunk in fold.pending(known.as_ref()).chunks(ENTRIES_PER_TRANSACTION) {
            let entry = |record: &RecordDeltas| {
                let json = texts.get(&(record.stream.clone(), record.sequence)).copied();
                let id = QuarantineId::Window(
                    record.stream.clone(),
                    record.sequence,
                    fold.window().kind(),
                );
                Entry::new(id, json.unwrap_or_default(), reason.to_owned())
            };
            let (Some(first), Some(last)) = (chunk.first(), chunk.last()) else { continue };
            let span = (fold.stream(), &first.sequence, &last.sequence);
            let entries = chunk.iter().map(|record| entry(record)).collect();
            let window = fold.key();
            match quarantine::pass_over(
                &self.client,
                &self.settings,
                &window,
                span,
                entries,
                deadline,
            )
            .await?
            {
                Passed::Raced => return Ok(false),
                Passed::Done { new, write_units } => {
                    written.write_units += write_units;
                    written.quarantined.extend(new.into_iter().map(|key| Quarantined {
                        key,
                        reason: reason.to_owned(),
                        is_new: true,
                    }));
                }
            }
        }
        Ok(true)
    }
}

/// Runs futures at most [`WRITES_AT_ONCE`] at a time; the results are in their order.
async fn bounded<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    stream::iter(futures).buffered(WRITES_AT_ONCE).collect().await
}

/// What became of one window.
#[derive(Debug, Default)]
struct Written {
    known: Option<SequenceNumber>,
    wrote: bool,
    write_units: f64,
    quarantined: Vec<Quarantined>,
    failure: Option<Failure>,
}

impl Written {
    fn failed(
        mut self,
        fold: &WindowFold,
        known: Option<SequenceNumber>,
        refusal: Refusal,
    ) -> Self {
        let first = fold.pending(known.as_ref()).first().map(|record| record.sequence);
        self.failure = Some(Failure { first, reason: refusal.reason() });
        self
    }
}

/// Collects what became of the parts of an event.
struct Tally {
    outcome: Outcome,
    dropped: HashSet<(StreamLabel, SequenceNumber)>,
}

impl Tally {
    fn new(report: Report) -> Self {
        Self { outcome: Outcome { report, ..Outcome::default() }, dropped: HashSet::new() }
    }

    fn entry(&mut self, entry: &Entry, result: Result<(bool, f64), Refusal>) {
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

    fn window(&mut self, fold: &WindowFold, written: Written) {
        let report = &mut self.outcome.report;
        report.windows_written += u64::from(written.wrote);
        report.write_units += written.write_units;
        if let Some(known) = written.known {
            let dropped = fold.records().iter().take_while(|record| record.sequence <= known);
            self.dropped.extend(dropped.map(|record| (record.stream.clone(), record.sequence)));
        }
        self.quarantined(written.quarantined);
        if let Some(failure) = written.failure {
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

    fn into_outcome(
        mut self,
        windows: Vec<sluicegate_core::keys::ItemKey>,
    ) -> Result<Outcome, HandleError> {
        let mut lowest: Option<SequenceNumber> = None;
        for failure in &self.outcome.failures {
            let Some(first) = failure.first else {
                return Err(HandleError::Unidentified { reason: failure.reason.clone() });
            };
            lowest = Some(lowest.map_or(first, |known| known.min(first)));
        }
        if let Some(lowest) = lowest {
            let mut failure = DynamoDbBatchItemFailure::default();
            failure.item_identifier = Some(lowest.to_string());
            self.outcome.response.batch_item_failures.push(failure);
        }
        self.outcome.report.duplicates_dropped += count(self.dropped.len());
        self.outcome.windows = windows;
        Ok(self.outcome)
    }
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn age_ms(created_s: f64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ((now.as_secs_f64() - created_s) * 1_000.0).max(0.0).round()
}
