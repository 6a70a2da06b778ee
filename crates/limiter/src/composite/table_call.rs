//! A call of a lane on the table, its answer, and the outcome of a request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sluicegate_core::{Answer, BucketId, Counts, Outcome, Write};

use crate::cost::Cost;
use crate::store_error::NoConnection;
use crate::table::{Mark, TableError};

/// A call of a lane.
pub(super) enum TableCall {
    /// Reads these buckets, by a strongly consistent read.
    Read(Vec<BucketId>),
    /// Makes this write of the lane's buckets, and writes the mark of the lane, if it has one.
    Write(Vec<BucketId>, Arc<Write>, Option<Arc<LaneMark>>),
}

/// The mark of a correction that is made once.
pub(super) struct LaneMark {
    pub(super) mark: Mark,
    /// True if the mark was there before the last write.
    pub(super) was_there: AtomicBool,
    /// True if it was there with another fingerprint.
    pub(super) key_was_reused: AtomicBool,
}

impl LaneMark {
    pub(super) const fn new(mark: Mark) -> Self {
        let (was_there, key_was_reused) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { mark, was_there, key_was_reused }
    }
}

/// The table's answer, and its cost.
pub(super) struct TableReply {
    pub(super) answer: Answer,
    pub(super) write_units: f64,
    pub(super) read_units: f64,
    pub(super) table_error: Option<TableError>,
}

impl TableReply {
    /// The reply of a call that ends with this error.
    pub(super) fn of_error(table_error: TableError) -> Self {
        let answer = match table_error {
            TableError::Conflict | TableError::Throttled(_) => Answer::Busy,
            TableError::Unconfirmed(ref source) if source.is::<NoConnection>() => Answer::NotSent,
            TableError::Unconfirmed(_) => Answer::Lost,
            TableError::Setup(_) => Answer::TableUnusable,
        };
        Self { answer, write_units: 0.0, read_units: 0.0, table_error: Some(table_error) }
    }

    pub(super) const fn of_write(answer: Answer, write_units: f64) -> Self {
        Self { answer, write_units, read_units: 0.0, table_error: None }
    }
}

/// The table as a lane sees it.
pub(super) trait LaneTable: Send + Sync {
    /// Makes a call on the table.
    fn call(&self, asked: TableCall) -> PendingCall;
    /// Takes in the counts of a queue.
    fn note_counts(&self, counts: Counts, buckets: &[BucketId]);
}

pub(super) type PendingCall = Pin<Box<dyn Future<Output = TableReply> + Send>>;

/// The outcome of a request.
pub(super) struct Resolved {
    pub(super) outcome: Outcome,
    /// Requests that share a call divide its cost.
    pub(super) cost: Cost,
    pub(super) table_error: Option<Arc<TableError>>,
}
