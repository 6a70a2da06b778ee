//! A recorded stream: lists of records, each list a closed shard.

use serde_json::Value;
use serde_json::value::RawValue;
use sluicegate_local::Error;
use sluicegate_local::poller::{Page, Position, Record, Shard, Source};

/// A stream whose records are all known.
#[derive(Debug, Clone, Default)]
pub struct RecordedSource {
    shards: Vec<(Shard, Vec<Record>)>,
}

impl RecordedSource {
    /// Id of the shard that [`RecordedSource::new`] makes.
    pub const SHARD_ID: &'static str = "recorded";

    /// A stream of one shard with these records, in this order, each with a sequence number of its
    /// own.
    ///
    /// # Panics
    /// If a record has no sequence number.
    #[must_use]
    pub fn new(records: Vec<Box<RawValue>>) -> Self {
        Self::default().with_shard(Self::SHARD_ID, None, records)
    }

    /// Adds a shard. The records of its parent come before its own.
    ///
    /// # Panics
    /// If a record has no sequence number.
    #[must_use]
    pub fn with_shard(
        mut self,
        id: &str,
        parent: Option<&str>,
        records: Vec<Box<RawValue>>,
    ) -> Self {
        let shard = Shard { id: id.to_owned(), parent: parent.map(str::to_owned), is_closed: true };
        self.shards.push((shard, records.into_iter().map(record).collect()));
        self
    }
}

impl Source for RecordedSource {
    async fn shards(&self) -> Result<Vec<Shard>, Error> {
        Ok(self.shards.iter().map(|(shard, _)| shard.clone()).collect())
    }

    async fn read(
        &self,
        shard: &str,
        after: Option<&Position>,
        limit: usize,
    ) -> Result<Page, Error> {
        let (_, records) = self.shards.iter().find(|(known, _)| known.id == shard).unwrap();
        let start = after.map_or(0, |after| {
            1 + records.iter().position(|record| record.position == *after).unwrap()
        });
        let end = start.saturating_add(limit).min(records.len());
        Ok(Page { records: records[start..end].to_vec(), ended: end == records.len() })
    }
}

fn record(json: Box<RawValue>) -> Record {
    let value: Value = serde_json::from_str(json.get()).unwrap();
    let position = Position::new(value["dynamodb"]["SequenceNumber"].as_str().unwrap());
    Record { position, json }
}
