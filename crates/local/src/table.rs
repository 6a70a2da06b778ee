//! Sets up the table of Sluicegate on a local engine, as producers set it up on DynamoDB.

use aws_sdk_dynamodb::Client;
use sluicegate::dynamo;

use crate::Error;

/// Creates table `name` and returns when it is usable: see [`dynamo::create_table`].
///
/// # Errors
/// [`Error::Table`] if the name is taken or the endpoint refuses.
pub async fn create_table(client: &Client, name: &str) -> Result<(), Error> {
    Ok(dynamo::create_table(client, name).await?)
}

/// ARN of the table's current stream.
///
/// # Errors
/// [`Error::Table`] if the table has no stream or cannot be described.
pub async fn stream_arn(client: &Client, name: &str) -> Result<String, Error> {
    Ok(dynamo::stream_arn(client, name).await?)
}
