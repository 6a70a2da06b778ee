//! A look at usage windows: the tokens of a user, by hour of today. The table's stream feeds them,
//! so they follow within seconds. Needs AWS_ENDPOINT_URL: docs/examples.md starts a local engine.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use std::time::Duration;

use futures_util::TryStreamExt as _;
use sluicegate::types::{WindowKind, WindowSpan};
use sluicegate::{DynamoStore, EntityId, Limit, Limiter, Resource};
use sluicegate_local::client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = std::env::var("AWS_ENDPOINT_URL")
        .map_err(|_| "set AWS_ENDPOINT_URL: docs/examples.md starts a local engine")?;
    // On AWS: aws_sdk_dynamodb::Client::new(&aws_config::load_defaults(...).await)
    let store = DynamoStore::new(client::dynamodb(&endpoint), "sluicegate-limits");
    let limiter = Limiter::new(store);

    let limits = [Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 10_000)];
    let request = limiter.acquire("erin", "gpt-4").consume("rpm", 1).consume("tpm", 500);
    request.limits(limits).await?.adjust("tpm", 240).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;

    let (user, model) = (EntityId::new("erin")?, Resource::new("gpt-4")?);
    let today = WindowKind::DAY.containing(limiter.clock().now());
    let hours = WindowSpan::within(today, WindowKind::Hour);
    let windows: Vec<_> = limiter.reader()?.usage(&user, &model, &hours).try_collect().await?;
    for usage in windows {
        println!("{}: {} events", usage.window.start_text(), usage.events);
        for (limit, milli) in usage.consumed_milli {
            println!("  {limit}: {} tokens", milli / 1_000);
        }
    }
    Ok(())
}
