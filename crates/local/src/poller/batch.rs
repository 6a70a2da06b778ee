//! A batch: consecutive records of one shard, and the evaluation of a handler's answer.

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use serde_json::value::RawValue;

use super::source::{Position, Record};

/// Records to deliver together, in shard order.
pub(super) struct Batch {
    /// The payloads, contiguous because the handler takes a slice of any part of them.
    pub(super) payloads: Vec<Box<RawValue>>,
    pub(super) positions: Vec<Position>,
}

impl Batch {
    pub(super) fn new(records: impl Iterator<Item = Record>) -> Self {
        let (payloads, positions) = records.map(|record| (record.json, record.position)).unzip();
        Self { payloads, positions }
    }

    /// The index of the record to start again from after the handler answered for `first..end`;
    /// `end` if all of it is done.
    ///
    /// As in Lambda, this is the lowest reported record: it and everything after it failed. An
    /// identifier that is null, empty, or not in the batch makes the whole batch fail, because its
    /// meaning is unknown.
    pub(super) fn done_until(
        &self,
        first: usize,
        end: usize,
        response: &DynamoDbEventResponse,
    ) -> usize {
        let positions = &self.positions[first..end];
        let failed = response.batch_item_failures.iter().map(|failure| {
            let identifier = failure.item_identifier.as_deref()?;
            positions.iter().position(|position| position.as_str() == identifier)
        });
        failed.map(|offset| first + offset.unwrap_or(0)).min().unwrap_or(end)
    }
}
