//! The result of one event: the answer to Lambda, and the records and writes that need attention.

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use sluicegate_core::SequenceNumber;
use sluicegate_core::keys::ItemKey;

use crate::report::Report;

/// The reason why an event fails as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The event must come again as a whole. Either a record without a readable position could not
    /// be put into quarantine, or a write failed and the first record to deliver again has no
    /// position.
    #[error(
        "Lambda must deliver the whole batch again, because there is no sequence number to report: {reason}"
    )]
    NoPosition {
        /// DynamoDB's error.
        reason: String,
    },
    /// An event without records came, and the table could not be asked for the alerts that wait.
    #[error(
        "the alerts that wait in the table could not be read, the next event tries again: {reason}"
    )]
    AlertsNotRead {
        /// DynamoDB's error.
        reason: String,
    },
}

/// The answer to Lambda, and the details of the event.
#[derive(Debug)]
pub struct Outcome {
    /// At most one identifier: the position from which the records must be delivered again. An
    /// error if a failure has no position to report, or if the alerts that wait could not be read.
    pub response: Result<DynamoDbEventResponse, HandleError>,
    /// Figures of the event.
    pub report: Report,
    /// Records that went to quarantine now or had gone there before.
    pub quarantined: Vec<Quarantined>,
    /// The reasons why positions must be delivered again.
    pub failures: Vec<Failure>,
    /// Keys of the usage windows that this event updated or tried to update.
    pub window_keys: Vec<ItemKey>,
}

/// A record that went to quarantine, for all its windows or for one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Key of its entry.
    pub key: ItemKey,
    /// The reason.
    pub reason: String,
    /// False if an earlier delivery put it there. True also if an attempt of this delivery may
    /// have put it, because its answer was lost.
    pub is_new: bool,
}

/// A write that was not confirmed in this invocation. Repeating it is safe, even if it was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The position of the oldest record of the write; `None` if that record has no readable
    /// position.
    pub first: Option<SequenceNumber>,
    /// The reason, in one sentence.
    pub reason: String,
}
