//! The processor as a poller's handler, in this process instead of in a Lambda.

use std::time::Duration;

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use serde_json::value::RawValue;
use sluicegate_processor::{HandleError, Processor};
use tokio::time::Instant;

use crate::poller::Handler;

/// Runs the very handler that the Lambda runs, with the time that an invocation would have.
#[derive(Debug, Clone)]
pub struct InProcess {
    processor: Processor,
    timeout: Duration,
}

impl InProcess {
    /// Gives every batch `timeout` to be written in.
    #[must_use]
    pub const fn new(processor: Processor, timeout: Duration) -> Self {
        Self { processor, timeout }
    }
}

impl Handler for InProcess {
    type Error = HandleError;

    async fn handle(
        &self,
        records: &[Box<RawValue>],
    ) -> Result<DynamoDbEventResponse, HandleError> {
        let deadline = Instant::now() + self.timeout;
        self.processor.handle(records, deadline).await.response
    }
}
