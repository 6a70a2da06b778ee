//! A batch: consecutive records of one shard, and the evaluation of a handler's answer.

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use serde_json::value::RawValue;

use super::source::{Position, Record};

/// Records to deliver together, in shard order.
#[derive(Debug, Clone, Default)]
pub(super) struct Batch {
    /// The payloads, contiguous because the handler takes a slice of any part of them.
    pub(super) payloads: Vec<Box<RawValue>>,
    marks: Vec<Mark>,
    /// The index of the first record that was not delivered before; records ahead of it move no
    /// checkpoint.
    pub(super) fresh_from: usize,
}

#[derive(Debug, Clone)]
struct Mark {
    position: Position,
    sequence_number: Option<String>,
}

impl Batch {
    /// A batch that begins with records delivered before.
    pub(super) fn new(repeated: Vec<Record>, fresh: impl IntoIterator<Item = Record>) -> Self {
        let mut batch = Self { fresh_from: repeated.len(), ..Self::default() };
        for record in repeated.into_iter().chain(fresh) {
            batch.payloads.push(record.json);
            batch
                .marks
                .push(Mark { position: record.position, sequence_number: record.sequence_number });
        }
        batch
    }

    pub(super) fn len(&self) -> usize {
        self.payloads.len()
    }

    /// The same batch, marked as delivered before.
    pub(super) fn repeated(mut self) -> Self {
        self.fresh_from = self.len();
        self
    }

    /// The last `count` records, or all of them when there are fewer.
    pub(super) fn tail(&self, count: usize) -> Vec<Record> {
        let start = self.len().saturating_sub(count);
        self.marks[start..]
            .iter()
            .zip(&self.payloads[start..])
            .map(|(mark, json)| Record {
                position: mark.position.clone(),
                sequence_number: mark.sequence_number.clone(),
                json: json.clone(),
            })
            .collect()
    }

    pub(super) fn position(&self, index: usize) -> &Position {
        &self.marks[index].position
    }

    /// The index of the record to start again from after the handler answered for `first..end`;
    /// `None` if all of it is done.
    ///
    /// As in Lambda, this is the lowest reported record: it and everything after it failed. An
    /// identifier that is null, empty, or not in the batch makes the whole batch fail, because its
    /// meaning is unknown.
    pub(super) fn failed_from(
        &self,
        first: usize,
        end: usize,
        response: &DynamoDbEventResponse,
    ) -> Option<usize> {
        response
            .batch_item_failures
            .iter()
            .map(|failure| {
                let identifier = failure.item_identifier.as_deref()?;
                let marks = &self.marks[first..end];
                marks.iter().position(|mark| mark.sequence_number.as_deref() == Some(identifier))
            })
            .map(|offset| offset.map_or(first, |offset| first + offset))
            .min()
    }
}
