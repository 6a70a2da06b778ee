//! A recorded stream: lists of records, each list a closed shard.
//!
//! Positions count records, so a list may hold duplicates, gaps and records without a sequence
//! number, and is still delivered exactly as it is.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::source::{Page, Position, Record, Shard, Source};
use crate::Error;

/// One shard of a recorded stream.
#[derive(Debug, Clone)]
pub struct RecordedShard {
    /// Its id.
    pub id: String,
    /// The shard whose records come before it.
    pub parent: Option<String>,
    /// Its records, in order.
    pub records: Vec<Box<RawValue>>,
}

/// A stream whose records are all known.
#[derive(Debug, Clone)]
pub struct RecordedSource {
    shards: Vec<RecordedShard>,
}

impl RecordedSource {
    /// Id of the shard that [`RecordedSource::new`] makes.
    pub const SHARD_ID: &'static str = "recorded";

    /// A stream of one shard.
    #[must_use]
    pub fn new(records: Vec<Box<RawValue>>) -> Self {
        Self::with_shards(vec![RecordedShard {
            id: Self::SHARD_ID.to_owned(),
            parent: None,
            records,
        }])
    }

    /// A stream of several shards.
    #[must_use]
    pub fn with_shards(shards: Vec<RecordedShard>) -> Self {
        Self { shards }
    }
}

impl Source for RecordedSource {
    async fn shards(&self) -> Result<Vec<Shard>, Error> {
        let shard = |shard: &RecordedShard| Shard {
            id: shard.id.clone(),
            parent: shard.parent.clone(),
            is_closed: true,
        };
        Ok(self.shards.iter().map(shard).collect())
    }

    async fn read(
        &self,
        shard: &str,
        after: Option<&Position>,
        limit: usize,
    ) -> Result<Page, Error> {
        let records = match self.shards.iter().find(|known| known.id == shard) {
            Some(known) => known.records.as_slice(),
            None => return Ok(Page { records: Vec::new(), ended: true }),
        };
        let start = after.map_or(Ok(0), parse)?.min(records.len());
        let end = start.saturating_add(limit).min(records.len());
        let page = (start + 1..).zip(&records[start..end]).map(|(count, json)| Record {
            position: Position::new(count.to_string()),
            sequence_number: sequence_number(json),
            json: json.clone(),
        });
        Ok(Page { records: page.collect(), ended: end == records.len() })
    }
}

fn parse(position: &Position) -> Result<usize, Error> {
    position.as_str().parse().map_err(|_| Error::Setting {
        setting: "checkpoint of a recorded stream",
        value: position.to_string(),
        range: "a number of records",
    })
}

/// The sequence number of a record in Lambda's shape, if it has one.
fn sequence_number(json: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Outer<'a> {
        #[serde(borrow)]
        dynamodb: Inner<'a>,
    }
    #[derive(Deserialize)]
    struct Inner<'a> {
        #[serde(borrow, rename = "SequenceNumber")]
        sequence_number: Cow<'a, str>,
    }
    let outer: Outer<'_> = serde_json::from_str(json.get()).ok()?;
    Some(outer.dynamodb.sequence_number.into_owned())
}
