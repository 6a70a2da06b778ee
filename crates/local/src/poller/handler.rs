//! The handler that a poller calls: the function behind an event source mapping.

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use serde_json::value::RawValue;

use crate::BoxError;

/// Handles one batch of records, in the JSON shape that Lambda hands to functions.
pub trait Handler: Send + Sync {
    /// The reason why a batch failed as a whole.
    type Error: Into<BoxError> + Send;

    /// Handles a batch of one shard, in order. Failures of single records are reported in the
    /// response; an error fails the batch as a whole.
    fn handle(
        &self,
        records: &[Box<RawValue>],
    ) -> impl Future<Output = Result<DynamoDbEventResponse, Self::Error>> + Send;
}

impl<H: Handler> Handler for &H {
    type Error = H::Error;

    fn handle(
        &self,
        records: &[Box<RawValue>],
    ) -> impl Future<Output = Result<DynamoDbEventResponse, Self::Error>> + Send {
        H::handle(self, records)
    }
}
