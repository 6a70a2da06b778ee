//! The smallest function with a DynamoDB client, for a comparison with `bootstrap`.
//!
//! It loads the same configuration, builds the same client, reads the same kind of event, and
//! answers that all of it is done. `cargo xtask figures` prints the comparison.

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = &sluicegate_processor::client(&sluicegate_processor::sdk_config().await);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
        // The optimiser must not remove them as unused.
        std::hint::black_box((client, event));
        Ok::<_, Error>(DynamoDbEventResponse::default())
    }))
    .await
}
