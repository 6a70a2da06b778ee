//! Limits that the table stores: requests name none, and an operator changes them while programs
//! run. Needs AWS_ENDPOINT_URL: docs/examples.md starts a local engine.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use sluicegate::types::LimitsScope;
use sluicegate::{AcquireError, DynamoStore, EntityId, Limit, Limiter, Resource};
use sluicegate_local::client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = std::env::var("AWS_ENDPOINT_URL")
        .map_err(|_| "set AWS_ENDPOINT_URL: docs/examples.md starts a local engine")?;
    // On AWS: aws_sdk_dynamodb::Client::new(&aws_config::load_defaults(...).await)
    let store = DynamoStore::new(client::dynamodb(&endpoint), "sluicegate-limits");
    let limiter = Limiter::new(store);

    let everyone = LimitsScope::Resource(Resource::new("gpt-4")?);
    let carol = LimitsScope::Entity(EntityId::new("carol")?);
    limiter.set_limits(&everyone, &[Limit::per_minute("rpm", 2)]).await?;
    limiter.set_limits(&carol, &[Limit::per_minute("rpm", 100)]).await?;

    for user in ["dave", "dave", "dave", "carol"] {
        match limiter.acquire(user, "gpt-4").consume("rpm", 1).await {
            Ok(permit) => {
                for left in permit.remaining() {
                    let show = |amount| left.limit.show(amount);
                    let (available, burst) = (show(left.available), show(left.rule.burst()));
                    println!("{user}: {available} of {burst} left");
                }
            }
            Err(AcquireError::LimitExceeded(refused)) => println!("{user}: {refused}"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
