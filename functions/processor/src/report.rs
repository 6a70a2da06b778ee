//! The results of one event.

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use sluicegate_core::SequenceNumber;
use sluicegate_core::keys::ItemKey;

/// A failure without a position to report: the whole event must be delivered again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// A record without a readable position could not be put into quarantine.
    #[error(
        "Lambda must deliver the whole batch again, because there is no sequence number to report: {reason}"
    )]
    Unidentified {
        /// DynamoDB's error.
        reason: String,
    },
}

/// The answer to Lambda, and the details of the event.
#[derive(Debug)]
pub struct Outcome {
    /// At most one identifier: the lowest position that must be delivered again. An error if a
    /// failure concerns a record that has no position to report.
    pub response: Result<DynamoDbEventResponse, HandleError>,
    /// Figures of the event.
    pub report: Report,
    /// Records that went to quarantine now or had gone there before.
    pub quarantined: Vec<Quarantined>,
    /// The reasons why positions must be delivered again.
    pub failures: Vec<Failure>,
    /// Keys of the usage windows that the event's records belong to.
    pub window_keys: Vec<ItemKey>,
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
    /// Write capacity units, a lower bound: as DynamoDB reported them, plus one for each refused
    /// condition, whose answer does not name them.
    pub write_units: f64,
    /// Age of the oldest record when it was processed, in milliseconds.
    pub record_age_ms: Option<f64>,
}

/// A record that cannot be counted as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Key of its entry.
    pub key: ItemKey,
    /// The reason.
    pub reason: String,
    /// False if an earlier delivery put it there.
    pub is_new: bool,
}

/// A write that was not done in this invocation and is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The oldest record of the write; `None` if it has no readable position.
    pub first: Option<SequenceNumber>,
    /// The reason, in one sentence.
    pub reason: String,
}
