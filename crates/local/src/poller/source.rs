//! Sources of records: shards, each an ordered log that is read page by page.
//!
//! The order is the source's: the poller compares no positions, it only finds the record that a
//! handler names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Error;

/// A shard of a stream and the shard it was split from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its id, unique in the stream.
    pub id: String,
    /// The shard whose records come before any of this one.
    pub parent: Option<String>,
    /// True if no more records come into it: a drain reads it to its end.
    pub is_closed: bool,
}

/// A place in a shard, just after the record with this sequence number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(String);

impl Position {
    /// The position after a record.
    pub fn new(sequence_number: impl Into<String>) -> Self {
        Self(sequence_number.into())
    }

    /// The sequence number of the record before it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Position after the last record done, per shard id.
pub type Checkpoints = BTreeMap<String, Position>;

/// A record of a shard.
#[derive(Debug, Clone)]
pub struct Record {
    /// The place just after it.
    pub position: Position,
    /// The record as Lambda hands it to a function.
    pub json: Box<RawValue>,
}

/// The result of one read.
#[derive(Debug, Default)]
pub struct Page {
    /// Records in shard order.
    pub records: Vec<Record>,
    /// True if the shard is closed and these are its last records.
    pub ended: bool,
}

/// A stream.
pub trait Source: Send + Sync {
    /// Every shard that exists now, in any order.
    fn shards(&self) -> impl Future<Output = Result<Vec<Shard>, Error>> + Send;

    /// At most `limit` records of `shard` after a position, or from its oldest record. A real
    /// stream may return fewer, or none although there are more.
    fn read(
        &self,
        shard: &str,
        after: Option<&Position>,
        limit: usize,
    ) -> impl Future<Output = Result<Page, Error>> + Send;
}
