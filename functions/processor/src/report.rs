//! What became of one event.

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use sluicegate_core::SequenceNumber;
use sluicegate_core::keys::ItemKey;

/// A failure that no position can report: the whole event must be delivered again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// A record without a readable position could not be put into quarantine.
    #[error(
        "a record without a sequence number is not safe yet, so the whole batch is to be retried: {reason}"
    )]
    Unidentified {
        /// What DynamoDB answered.
        reason: String,
    },
}

/// The answer to Lambda and everything worth telling beside it.
#[derive(Debug)]
pub struct Outcome {
    /// At most one identifier: the lowest position that must be delivered again. An error when a
    /// failure concerns a record that has no position to report.
    pub response: Result<DynamoDbEventResponse, HandleError>,
    /// Figures of the event.
    pub report: Report,
    /// Records that went to quarantine now or had gone there before.
    pub quarantined: Vec<Quarantined>,
    /// Why positions must be delivered again.
    pub failures: Vec<Failure>,
    /// Keys of the usage windows that the event's records belong to.
    pub windows: Vec<ItemKey>,
}

/// Figures of one event.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// Records delivered.
    pub records: u64,
    /// Counters whose change was read from them.
    pub deltas: u64,
    /// Updates of usage windows.
    pub windows_written: u64,
    /// Records that had been counted before, or came twice in the event.
    pub duplicates_dropped: u64,
    /// Entries added to quarantine.
    pub quarantined: u64,
    /// Windows and quarantine entries whose write must be repeated by a later delivery.
    pub retryable_failures: u64,
    /// Write capacity units, a lower bound: as DynamoDB reported them, and one for each refused
    /// condition, whose answer does not say.
    pub write_units: f64,
    /// Age of the oldest record when it was processed, in milliseconds.
    pub record_age_ms: Option<f64>,
}

/// A record that cannot be counted as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Key of its entry.
    pub key: ItemKey,
    /// Why.
    pub reason: String,
    /// False when an earlier delivery put it there.
    pub is_new: bool,
}

/// A write that did not happen in this invocation and is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The oldest record concerned; `None` when it has no readable position.
    pub first: Option<SequenceNumber>,
    /// Why, in one sentence.
    pub reason: String,
}
