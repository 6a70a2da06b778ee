//! A handler that notes its batches and answers as a test sets, and records for it.

use std::sync::Mutex;
use std::time::Duration;

use aws_lambda_events::event::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use serde_json::value::RawValue;

use sluicegate_local::BoxError;
use sluicegate_local::poller::{Backoff, BatchSize, Handler, Settings};

/// The answer of a handler to a batch.
pub(crate) enum Answer {
    Done,
    /// Reports these identifiers as they are.
    Failed(Vec<Option<String>>),
    Error,
}

/// A batch, as the short numbers its records were made from.
pub(crate) type Numbers = Vec<u64>;

pub(crate) struct Script<F> {
    answer: F,
    batches: Mutex<Vec<Numbers>>,
}

impl<F: Fn(&[u64]) -> Answer + Send + Sync> Script<F> {
    pub(crate) fn new(answer: F) -> Self {
        Self { answer, batches: Mutex::default() }
    }

    pub(crate) fn batches(&self) -> Vec<Numbers> {
        self.batches.lock().unwrap().clone()
    }
}

impl<F: Fn(&[u64]) -> Answer + Send + Sync> Handler for Script<F> {
    type Error = BoxError;

    async fn handle(
        &self,
        records: &[Box<RawValue>],
    ) -> Result<DynamoDbEventResponse, Self::Error> {
        let batch: Numbers = records.iter().map(|record| number(record)).collect();
        let answer = (self.answer)(&batch);
        self.batches.lock().unwrap().push(batch);
        // Other shards run here, as they do while a real handler writes.
        tokio::task::yield_now().await;
        match answer {
            Answer::Done => Ok(DynamoDbEventResponse::default()),
            Answer::Failed(identifiers) => Ok(failures(identifiers)),
            Answer::Error => Err("scripted".into()),
        }
    }
}

fn failures(identifiers: Vec<Option<String>>) -> DynamoDbEventResponse {
    let mut response = DynamoDbEventResponse::default();
    for identifier in identifiers {
        let mut failure = DynamoDbBatchItemFailure::default();
        failure.item_identifier = identifier;
        response.batch_item_failures.push(failure);
    }
    response
}

/// The identifier of record `number`.
pub(crate) fn id(number: u64) -> Option<String> {
    Some(format!("1{number:020}"))
}

pub(crate) fn record(number: u64) -> Box<RawValue> {
    let sequence_number = id(number).unwrap();
    let json = serde_json::json!({"dynamodb": {"SequenceNumber": sequence_number}});
    serde_json::value::to_raw_value(&json).unwrap()
}

pub(crate) fn records(numbers: impl IntoIterator<Item = u64>) -> Vec<Box<RawValue>> {
    numbers.into_iter().map(record).collect()
}

pub(crate) fn number(record: &RawValue) -> u64 {
    let value: serde_json::Value = serde_json::from_str(record.get()).unwrap();
    value["dynamodb"]["SequenceNumber"].as_str().unwrap()[1..].parse().unwrap()
}

/// Settings for a test: batches of `batch_size`, retries at once.
pub(crate) fn settings(batch_size: usize) -> Settings {
    Settings {
        batch_size: BatchSize::new(batch_size).unwrap(),
        backoff: Backoff { first: Duration::ZERO, longest: Duration::ZERO },
    }
}
