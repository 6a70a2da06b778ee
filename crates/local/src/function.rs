//! The processor as a poller's handler, in this process instead of in a Lambda.

use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use serde_json::value::RawValue;
use sluicegate_processor::{HandleError, Outcome, Processor};
use tokio::time::Instant;

use crate::poller::Handler;

/// Receives the outcome of every batch, between two batches of its shard: it should be quick.
pub type Observer = Arc<dyn Fn(&Outcome) + Send + Sync>;

/// Runs the same handler as the Lambda, with the time that an invocation would have.
#[derive(Clone)]
pub struct InProcess {
    processor: Processor,
    timeout: Duration,
    observer: Option<Observer>,
}

impl InProcess {
    /// A handler with `timeout` for the writes of each batch.
    #[must_use]
    pub const fn new(processor: Processor, timeout: Duration) -> Self {
        Self { processor, timeout, observer: None }
    }

    /// Also shows every outcome to `observer`.
    #[must_use]
    pub fn observed_by(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }
}

impl Handler for InProcess {
    type Error = HandleError;

    async fn handle(
        &self,
        records: &[Box<RawValue>],
    ) -> Result<DynamoDbEventResponse, HandleError> {
        let deadline = Instant::now() + self.timeout;
        let outcome = self.processor.handle(records, deadline).await;
        if let Some(observer) = &self.observer {
            observer(&outcome);
        }
        outcome.response
    }
}

impl std::fmt::Debug for InProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcess")
            .field("processor", &self.processor)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
