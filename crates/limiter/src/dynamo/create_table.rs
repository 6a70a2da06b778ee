//! Creates the table of Sluicegate on any DynamoDB endpoint, as the deployment template would.
//!
//! Both indexes project keys only. With more, every write to a bucket would pay for an index write,
//! and every entity of a resource would share one hot index key.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{BuildError, SdkError};
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::operation::create_table::builders::CreateTableFluentBuilder;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType, StreamSpecification, StreamViewType, TableDescription,
    TableStatus, TimeToLiveSpecification,
};

use sluicegate_core::keys::{GSI1, GSI2, Index, PK, SK, TTL};

use super::RequestError;

const ACTIVE_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// DynamoDB takes 10 to 20 s for a table with two indexes, local engines none.
const ACTIVE_WITHIN: Duration = Duration::from_secs(120);

/// The reason why the table cannot be set up or described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableSetupError {
    /// The name is taken: use the existing table, or another name.
    #[error("table {table} exists already; use it as it is or choose another name")]
    Exists {
        /// Name of the table.
        table: String,
    },

    /// The table was created but did not become usable.
    #[error(
        "table {table} is still not ACTIVE after {waited_seconds} s; look at it in the console, or at the engine's log"
    )]
    NotActive {
        /// Name of the table.
        table: String,
        /// The time that was waited.
        waited_seconds: u64,
    },

    /// The table has no stream to read.
    #[error("table {table} has no stream; enable one with view type NEW_AND_OLD_IMAGES")]
    NoStream {
        /// Name of the table.
        table: String,
    },

    /// DynamoDB did not execute the request.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Creates table `name`: PK/SK, GSI1 and GSI2 with keys only, on-demand billing, a stream with both
/// images, TTL on `ttl`. Returns when it is usable.
///
/// # Errors
/// [`TableSetupError::Exists`] if the name is taken, [`TableSetupError::NotActive`] if it
/// stays unusable for two minutes, [`TableSetupError::Request`] for anything else that DynamoDB
/// refuses.
pub async fn create_table(client: &Client, name: &str) -> Result<(), TableSetupError> {
    let created = request(client, name)
        .map_err(|error| RequestError::failed("CreateTable", name, error))?
        .send()
        .await
        .map_err(|error| refused(error, name))?;
    created.table_description.ok_or_else(|| RequestError::empty("CreateTable", name))?;
    wait_until_active(client, name).await?;
    enable_ttl(client, name).await
}

/// ARN of the table's current stream.
///
/// # Errors
/// [`TableSetupError::NoStream`] if the table has none, [`TableSetupError::Request`] if it
/// cannot be described.
pub async fn stream_arn(client: &Client, name: &str) -> Result<String, TableSetupError> {
    let described = describe(client, name).await?;
    described.latest_stream_arn.ok_or_else(|| TableSetupError::NoStream { table: name.to_owned() })
}

async fn describe(client: &Client, name: &str) -> Result<TableDescription, RequestError> {
    let described = client.describe_table().table_name(name).send().await;
    let described = described.map_err(|error| RequestError::of("DescribeTable", name, error))?;
    described.table.ok_or_else(|| RequestError::empty("DescribeTable", name))
}

fn request(client: &Client, name: &str) -> Result<CreateTableFluentBuilder, BuildError> {
    let mut request = client
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest)
        .set_key_schema(Some(key_schema(PK, SK)?))
        .stream_specification(
            StreamSpecification::builder()
                .stream_enabled(true)
                .stream_view_type(StreamViewType::NewAndOldImages)
                .build()?,
        );
    for attribute in [PK, SK, GSI1.pk, GSI1.sk, GSI2.pk, GSI2.sk] {
        request = request.attribute_definitions(
            AttributeDefinition::builder()
                .attribute_name(attribute)
                .attribute_type(ScalarAttributeType::S)
                .build()?,
        );
    }
    for Index { name: index, pk: partition, sk: sort } in [GSI1, GSI2] {
        request = request.global_secondary_indexes(
            GlobalSecondaryIndex::builder()
                .index_name(index)
                .set_key_schema(Some(key_schema(partition, sort)?))
                .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build())
                .build()?,
        );
    }
    Ok(request)
}

fn key_schema(partition: &str, sort: &str) -> Result<Vec<KeySchemaElement>, BuildError> {
    let element =
        |name, kind| KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
    Ok(vec![element(partition, KeyType::Hash)?, element(sort, KeyType::Range)?])
}

async fn wait_until_active(client: &Client, name: &str) -> Result<(), TableSetupError> {
    let deadline = tokio::time::Instant::now() + ACTIVE_WITHIN;
    loop {
        match describe(client, name).await {
            Ok(described) if described.table_status == Some(TableStatus::Active) => return Ok(()),
            // DynamoDB may not know the table yet.
            Ok(_) | Err(RequestError::MissingTable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(TableSetupError::NotActive {
                table: name.to_owned(),
                waited_seconds: ACTIVE_WITHIN.as_secs(),
            });
        }
        tokio::time::sleep(ACTIVE_POLL_INTERVAL).await;
    }
}

async fn enable_ttl(client: &Client, name: &str) -> Result<(), TableSetupError> {
    let specification = TimeToLiveSpecification::builder()
        .enabled(true)
        .attribute_name(TTL)
        .build()
        .map_err(|error| RequestError::failed("UpdateTimeToLive", name, error))?;
    let enabled = client
        .update_time_to_live()
        .table_name(name)
        .time_to_live_specification(specification)
        .send()
        .await
        .map_err(|error| RequestError::of("UpdateTimeToLive", name, error))?;
    let enabled = enabled.time_to_live_specification;
    enabled.ok_or_else(|| RequestError::empty("UpdateTimeToLive", name))?;
    Ok(())
}

fn refused(error: SdkError<CreateTableError>, name: &str) -> TableSetupError {
    if error.as_service_error().is_some_and(CreateTableError::is_resource_in_use_exception) {
        return TableSetupError::Exists { table: name.to_owned() };
    }
    RequestError::of("CreateTable", name, error).into()
}
