//! The table of Sluicegate, created on any DynamoDB endpoint as the deployment template would.
//!
//! Both indexes project keys only: with more, every write to a bucket would pay for an index write
//! and every entity of a resource would share one hot index key.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{BuildError, SdkError};
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType, StreamSpecification, StreamViewType, TableStatus,
    TimeToLiveSpecification,
};

use sluicegate_core::keys::{GSI1, GSI2, Index, PK, SK, TTL};

use crate::{BoxError, Error};

const ACTIVE_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// DynamoDB takes 10 to 20 s for a table with two indexes, local engines none.
const ACTIVE_WITHIN: Duration = Duration::from_secs(120);

/// Creates table `name`: PK/SK, GSI1 and GSI2 with keys only, on-demand billing, a stream with both
/// images, TTL on `ttl`. Returns when it is usable.
///
/// # Errors
/// [`Error::TableExists`] when the name is taken, [`Error::Table`] for anything else the endpoint
/// refuses, [`Error::TableNotActive`] when it stays unusable for two minutes.
pub async fn create_table(client: &Client, name: &str) -> Result<(), Error> {
    request(client, name)
        .map_err(failed("CreateTable", name))?
        .send()
        .await
        .map_err(|error| refused(error, name))?;
    wait_until_active(client, name).await?;
    enable_ttl(client, name).await
}

/// ARN of the table's current stream.
///
/// # Errors
/// [`Error::NoStream`] when the table has none, [`Error::Table`] when it cannot be described.
pub async fn stream_arn(client: &Client, name: &str) -> Result<String, Error> {
    let described = client
        .describe_table()
        .table_name(name)
        .send()
        .await
        .map_err(failed("DescribeTable", name))?;
    described
        .table()
        .and_then(|table| table.latest_stream_arn())
        .map(str::to_owned)
        .ok_or_else(|| Error::NoStream { table: name.to_owned() })
}

fn request(
    client: &Client,
    name: &str,
) -> Result<aws_sdk_dynamodb::operation::create_table::builders::CreateTableFluentBuilder, BuildError>
{
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

async fn wait_until_active(client: &Client, name: &str) -> Result<(), Error> {
    let deadline = tokio::time::Instant::now() + ACTIVE_WITHIN;
    loop {
        let described = client
            .describe_table()
            .table_name(name)
            .send()
            .await
            .map_err(failed("DescribeTable", name))?;
        let status = described.table().and_then(|table| table.table_status());
        if status == Some(&TableStatus::Active) {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(Error::TableNotActive {
                table: name.to_owned(),
                waited_seconds: ACTIVE_WITHIN.as_secs(),
            });
        }
        tokio::time::sleep(ACTIVE_POLL_INTERVAL).await;
    }
}

async fn enable_ttl(client: &Client, name: &str) -> Result<(), Error> {
    let specification = TimeToLiveSpecification::builder()
        .enabled(true)
        .attribute_name(TTL)
        .build()
        .map_err(failed("UpdateTimeToLive", name))?;
    client
        .update_time_to_live()
        .table_name(name)
        .time_to_live_specification(specification)
        .send()
        .await
        .map_err(failed("UpdateTimeToLive", name))?;
    Ok(())
}

fn refused(error: SdkError<CreateTableError>, name: &str) -> Error {
    if error.as_service_error().is_some_and(CreateTableError::is_resource_in_use_exception) {
        return Error::TableExists { table: name.to_owned() };
    }
    failed("CreateTable", name)(error)
}

fn failed<E: Into<BoxError>>(operation: &'static str, name: &str) -> impl FnOnce(E) -> Error {
    let table = name.to_owned();
    move |source| Error::Table { operation, table, source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EmbeddedEngine, Storage, client};

    const TABLE: &str = "sluicegate-table";

    #[tokio::test]
    async fn the_table_is_the_one_of_the_design() {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        let client = client::dynamodb(&engine.endpoint_url());
        create_table(&client, TABLE).await.unwrap();

        let described = client.describe_table().table_name(TABLE).send().await.unwrap();
        let table = described.table().unwrap();
        assert_eq!(
            table.billing_mode_summary().and_then(|summary| summary.billing_mode()),
            Some(&BillingMode::PayPerRequest)
        );
        assert_eq!(
            table.stream_specification().and_then(|stream| stream.stream_view_type()),
            Some(&StreamViewType::NewAndOldImages)
        );
        assert_eq!(table.key_schema(), key_schema("PK", "SK").unwrap());
        let mut indexes: Vec<_> = table
            .global_secondary_indexes()
            .iter()
            .map(|index| {
                let projection = index.projection().unwrap().projection_type().unwrap().clone();
                (index.index_name().unwrap().to_owned(), projection)
            })
            .collect();
        indexes.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(
            indexes,
            [("GSI1".into(), ProjectionType::KeysOnly), ("GSI2".into(), ProjectionType::KeysOnly)]
        );
        let ttl = client.describe_time_to_live().table_name(TABLE).send().await.unwrap();
        assert_eq!(ttl.time_to_live_description().unwrap().attribute_name(), Some("ttl"));
        assert!(stream_arn(&client, TABLE).await.unwrap().contains(TABLE));
        engine.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_name_that_is_taken_is_told_apart() {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        let client = client::dynamodb(&engine.endpoint_url());
        create_table(&client, TABLE).await.unwrap();
        let again = create_table(&client, TABLE).await;
        assert!(matches!(again, Err(Error::TableExists { table }) if table == TABLE));
        let missing = stream_arn(&client, "sluicegate-missing").await;
        assert!(matches!(missing, Err(Error::Table { operation: "DescribeTable", .. })));
        engine.stop().await.unwrap();
    }
}
