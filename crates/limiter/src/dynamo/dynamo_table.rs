//! Executes plans on a DynamoDB table.

use std::collections::HashMap;
use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::StalledStreamProtectionConfig;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, KeysAndAttributes, ReturnConsumedCapacity, ReturnValue,
};
use serde_dynamo::Item;
use sluicegate_core::keys::{self, ItemKey};
use sluicegate_core::{BucketId, WritePlan};

use super::answers::{ALL_OLD, condition_failed, key, parse_image, spent, text, units};
use super::expressions::{self, Expression};
use super::table_error::{self, EmptyAnswer};
use super::{ConfigStore, Reader};
use crate::store_error::SetupError;
use crate::table::{
    Consistency, Mark, ReadItems, Table, TableError, TransactError, WriteError, Written,
};

/// A table on DynamoDB, or on any engine that speaks its protocol.
#[derive(Debug, Clone)]
pub struct DynamoTable {
    pub(super) client: Client,
    /// The client as it was given, for [`config`](Self::config) and [`reader`](Self::reader).
    retrying_client: Client,
    pub(super) name: Arc<str>,
    /// See [`converting_legacy`](Self::converting_legacy).
    pub(super) converts_legacy: bool,
}

impl DynamoTable {
    /// The table `name`, through `client`. Only [`config`](Self::config) and
    /// [`reader`](Self::reader) use the client as it is given. The calls of this type do not use
    /// the SDK's own retries: an ADD that may have been applied must not be repeated blindly. They
    /// do not use the SDK's watch over slow bodies either: each call here ends by its deadline, and
    /// the watch costs two timers per call.
    #[must_use]
    pub fn new(client: &Client, name: impl AsRef<str>) -> Self {
        let config = client
            .config()
            .to_builder()
            .retry_config(RetryConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .build();
        let (retrying_client, name) = (client.clone(), name.as_ref().into());
        Self { client: Client::from_conf(config), retrying_client, name, converts_legacy: false }
    }

    /// Entities and limits that are stored in the table.
    #[must_use]
    pub fn config(&self) -> ConfigStore {
        ConfigStore::new(self.retrying_client.clone(), &*self.name)
    }

    /// Reads usage windows, buckets of a resource, and children.
    #[must_use]
    pub fn reader(&self) -> Reader {
        let reader = Reader::new(self.retrying_client.clone(), &*self.name);
        if self.converts_legacy { reader.including_legacy() } else { reader }
    }

    /// The client, without retries.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The name of the table.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    async fn put(
        &self,
        bucket: &BucketId,
        item: HashMap<String, AttributeValue>,
        condition: String,
    ) -> Result<Written, WriteError> {
        let request = self
            .client
            .put_item()
            .table_name(&*self.name)
            .set_item(Some(item))
            .condition_expression(condition)
            .return_values_on_condition_check_failure(ALL_OLD)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        match request.send().await {
            // PutItem cannot return the item that it wrote; the caller knows it.
            Ok(output) => {
                Ok(Written { image: None, write_units: spent(output.consumed_capacity)? })
            }
            Err(error) => Err(match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    condition_failed(bucket, failed.item())
                }
                _ => WriteError::Table(table_error::of(&self.name, error)),
            }),
        }
    }

    async fn update(
        &self,
        bucket: &BucketId,
        update: expressions::Update,
    ) -> Result<Written, WriteError> {
        let request = self
            .client
            .update_item()
            .table_name(&*self.name)
            .set_key(Some(expressions::key(&key(bucket))))
            .update_expression(update.expression)
            .condition_expression(update.condition)
            .set_expression_attribute_names(update.names)
            .set_expression_attribute_values(Some(update.values))
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ALL_OLD)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        match request.send().await {
            Ok(output) => {
                let write_units = spent(output.consumed_capacity)?;
                // The write is done; if the answer cannot be read, only the image is not known.
                let image =
                    output.attributes.and_then(|item| parse_image(bucket, &item).ok()).flatten();
                Ok(Written { image, write_units })
            }
            Err(error) => Err(match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    condition_failed(bucket, failed.item())
                }
                _ => WriteError::Table(table_error::of(&self.name, error)),
            }),
        }
    }

    pub(super) async fn get(
        &self,
        key: &ItemKey,
        consistency: Consistency,
    ) -> Result<(Option<Item>, f64), TableError> {
        let request = self
            .client
            .get_item()
            .table_name(&*self.name)
            .set_key(Some(expressions::key(key)))
            .consistent_read(consistency == Consistency::Strong)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let output = request.send().await.map_err(|error| table_error::of(&self.name, error))?;
        let read_units = spent(output.consumed_capacity)?;
        Ok((output.item.map(Item::from), read_units))
    }
}

impl Table for DynamoTable {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        if self.converts_legacy {
            return self.write_converting(bucket, plan).await;
        }
        match expressions::of(plan) {
            Expression::Put { item, condition } => self.put(bucket, item, condition).await,
            Expression::Update(update) => self.update(bucket, update).await,
        }
    }

    async fn transact_write(
        &self,
        writes: &[(BucketId, WritePlan)],
        mark: Option<&Mark>,
        token: &str,
    ) -> Result<f64, TransactError> {
        if self.converts_legacy {
            self.transact_converting(writes, mark, token).await
        } else {
            self.transact(writes, mark, token).await
        }
    }

    async fn read(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<ReadItems, TableError> {
        if self.converts_legacy {
            return self.read_both(keys, consistency).await;
        }
        if let [key] = keys {
            let (item, read_units) = self.get(key, consistency).await?;
            return Ok(ReadItems { items: vec![item], read_units });
        }
        let mut found = HashMap::new();
        let mut read_units = 0.0;
        let mut wanted: Vec<_> = keys.iter().map(expressions::key).collect();
        while !wanted.is_empty() {
            let request = KeysAndAttributes::builder()
                .set_keys(Some(wanted))
                .consistent_read(consistency == Consistency::Strong)
                .build()
                .map_err(|error| SetupError::Rejected(error.into()))?;
            let request = self
                .client
                .batch_get_item()
                .request_items(&*self.name, request)
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            let output =
                request.send().await.map_err(|error| table_error::of(&self.name, error))?;
            read_units += output.consumed_capacity().iter().map(|c| units(Some(c))).sum::<f64>();
            let before = found.len();
            let responses = output.responses.ok_or(EmptyAnswer)?;
            for item in responses.into_values().flatten() {
                found.insert((text(&item, keys::PK), text(&item, keys::SK)), Item::from(item));
            }
            let rest = output.unprocessed_keys.and_then(|mut rest| rest.remove(&*self.name));
            wanted = rest.map(|rest| rest.keys).unwrap_or_default();
            // DynamoDB returned none of the items that were left. A second request at once would
            // get none either.
            if !wanted.is_empty() && found.len() == before {
                return Err(TableError::Throttled("BatchGetItem leaves all items out".into()));
            }
        }
        let items = keys.iter().map(|key| found.remove(&(key.pk(), key.sk()))).collect();
        Ok(ReadItems { items, read_units })
    }
}
