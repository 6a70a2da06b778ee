//! Writes and reads the configuration stored in the table: entities and limits.
//!
//! Every change of a level's limits increases its version in the table, regardless of the writers'
//! clocks. So a bucket can tell which of two copies is the newer.

use std::collections::HashSet;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{ReturnConsumedCapacity, ReturnValue};
use serde_dynamo::Item;
use sluicegate_core::keys::{ItemKey, LimitsScope};
use sluicegate_core::{EntityId, EntityRecord, EpochMillis, ItemError, LimitName, StoredLimits};

use super::item::{Attributes, decode};
use super::stored_expressions::{self as expressions, Level, StoredUpdate};
use super::{BrokenItem, RequestError};
use crate::Limit;
use crate::error::InvalidLimit;

/// The most limits that one write can name: an expression has at most 4,096 bytes.
pub(super) const LIMITS_PER_WRITE: usize = 50;

/// The reason why an entity or limit was not stored, or cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The limiter's store is not a [`DynamoStore`](crate::DynamoStore).
    #[error(
        "only DynamoDB stores limits, entities and usage: make the limiter on DynamoDB, or name the limits with each request"
    )]
    NotDynamo,

    /// An entity would be its own parent.
    #[error("entity {entity} cannot be its own parent; name another one, or none")]
    OwnParent {
        /// The entity.
        entity: EntityId,
    },

    /// A limit is invalid.
    #[error(transparent)]
    Limit(#[from] InvalidLimit),

    /// Two limits have one name.
    #[error("limit {limit} was given twice; give it once")]
    Repeated {
        /// Their name.
        limit: LimitName,
    },

    /// No limits, or more than one write takes.
    #[error("{given} limits were given; give from 1 to {LIMITS_PER_WRITE} at once")]
    Count {
        /// The number of limits.
        given: usize,
    },

    /// An item of the configuration is broken.
    #[error(transparent)]
    Item(#[from] Box<BrokenItem>),

    /// DynamoDB did not execute the request.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Entities and limits that are stored in the table.
#[derive(Debug, Clone)]
pub struct ConfigStore {
    pub(super) client: Client,
    pub(super) table: String,
}

impl ConfigStore {
    /// The configuration in `table`. The SDK's own retries may be on: every write here can be
    /// repeated.
    #[must_use]
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        Self { client, table: table.into() }
    }

    /// Stores the parent of an entity and if it takes from the parent's bucket too; replaces the
    /// earlier record. One write unit, two more when the parent changes.
    ///
    /// # Errors
    /// [`ConfigError::OwnParent`] for an entity that is its own parent, else
    /// [`ConfigError::Request`].
    pub async fn put_entity(&self, record: &EntityRecord) -> Result<(), ConfigError> {
        if record.parent.as_ref() == Some(&record.entity) {
            return Err(ConfigError::OwnParent { entity: record.entity.clone() });
        }
        let update = expressions::put_entity(record);
        self.change(&record.key(), update, |_| Ok(Some(()))).await.map(drop)
    }

    /// The stored record of an entity; `None` if there is none. A consistent read.
    ///
    /// # Errors
    /// [`ConfigError::Item`] when the item is broken, else [`ConfigError::Request`].
    pub async fn get_entity(&self, entity: &EntityId) -> Result<Option<EntityRecord>, ConfigError> {
        let key = ItemKey::Entity(entity.clone());
        self.get(&key, EntityRecord::from_item).await
    }

    /// Deletes the stored record of an entity, and with it its parent. Its buckets, usage windows
    /// and stored limits stay, and so do its own children.
    ///
    /// # Errors
    /// [`ConfigError::Request`].
    pub async fn delete_entity(&self, entity: &EntityId) -> Result<(), ConfigError> {
        let output = self
            .client
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(expressions::key(&ItemKey::Entity(entity.clone()))))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|error| RequestError::of("DeleteItem", &self.table, error))?;
        // Some engines name the attributes only.
        match (output.consumed_capacity, output.attributes) {
            (None, None) => Err(RequestError::empty("DeleteItem", &self.table).into()),
            _ => Ok(()),
        }
    }

    /// Stores limits, from 1 to 50, all or none of them. Other limits of the same scope stay as
    /// they are. Returns the limits that the scope has now; its `updated_at` is `now`. One request.
    ///
    /// # Errors
    /// [`ConfigError::Limit`], [`ConfigError::Repeated`] or [`ConfigError::Count`] for limits that
    /// cannot be stored; [`ConfigError::Item`] when the item is broken, else
    /// [`ConfigError::Request`].
    pub async fn set_limits(
        &self,
        scope: &LimitsScope,
        limits: &[Limit],
        now: EpochMillis,
    ) -> Result<StoredLimits, ConfigError> {
        let rules = limits.iter().map(Limit::check).collect::<Result<Vec<_>, _>>()?;
        if !(1..=LIMITS_PER_WRITE).contains(&rules.len()) {
            return Err(ConfigError::Count { given: rules.len() });
        }
        let mut names = HashSet::new();
        if let Some((limit, _)) = rules.iter().find(|(limit, _)| !names.insert(limit)) {
            return Err(ConfigError::Repeated { limit: limit.clone() });
        }
        let key = ItemKey::Limits(scope.clone());
        // Another writer may create or delete the level between the two attempts.
        for level in [Level::There, Level::New, Level::There] {
            let update = expressions::set_limits(&rules, level, now);
            if let Some(stored) = self.change(&key, update, StoredLimits::from_item).await? {
                return Ok(stored);
            }
        }
        Err(RequestError::empty("UpdateItem", &self.table).into())
    }

    /// Deletes limits of a scope by name; names that are not stored there are ignored. Returns the
    /// limits that the scope has now, `None` if it never had any. One request for the read, and one
    /// for every 50 stored limits.
    ///
    /// # Errors
    /// [`ConfigError::Item`] when the item is broken, else [`ConfigError::Request`].
    pub async fn delete_limits(
        &self,
        scope: &LimitsScope,
        limits: &[LimitName],
        now: EpochMillis,
    ) -> Result<Option<StoredLimits>, ConfigError> {
        let key = ItemKey::Limits(scope.clone());
        let mut found = self.get_limits(scope).await?;
        let Some(stored) = &found else { return Ok(None) };
        let is_named = |limit: &&LimitName| limits.contains(limit);
        let limits: Vec<_> = stored.rules.keys().filter(is_named).cloned().collect();
        for limits in limits.chunks(LIMITS_PER_WRITE) {
            let update = expressions::delete_limits(limits, now);
            found = self.change(&key, update, StoredLimits::from_item).await?;
        }
        Ok(found)
    }

    /// The limits of a scope, tombstones included; `None` if it never had any. A consistent read.
    ///
    /// # Errors
    /// [`ConfigError::Item`] when the item is broken, else [`ConfigError::Request`].
    pub async fn get_limits(
        &self,
        scope: &LimitsScope,
    ) -> Result<Option<StoredLimits>, ConfigError> {
        self.get(&ItemKey::Limits(scope.clone()), StoredLimits::from_item).await
    }

    /// The item after a change; `None`: the change's condition refused it.
    pub(super) async fn change<T>(
        &self,
        key: &ItemKey,
        update: StoredUpdate,
        from_item: fn(&Item) -> Result<Option<T>, ItemError>,
    ) -> Result<Option<T>, ConfigError> {
        let values = Some(update.placeholders.values).filter(|values| !values.is_empty());
        let sent = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(expressions::key(key)))
            .update_expression(update.expression)
            .set_condition_expression(update.condition)
            .set_expression_attribute_names(Some(update.placeholders.names))
            .set_expression_attribute_values(values)
            .return_values(ReturnValue::AllNew)
            .send()
            .await;
        match sent {
            Ok(output) => match output.attributes {
                Some(item) => Ok(decode(item, from_item)?),
                None => Err(RequestError::empty("UpdateItem", &self.table).into()),
            },
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(_)) => Ok(None),
                _ => Err(RequestError::of("UpdateItem", &self.table, error).into()),
            },
        }
    }

    pub(super) async fn get<T>(
        &self,
        key: &ItemKey,
        from_item: fn(&Item) -> Result<Option<T>, ItemError>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(item) = self.item(key).await? else { return Ok(None) };
        Ok(decode(item, from_item)?)
    }

    /// Reads an item. A consistent read.
    pub(super) async fn item(&self, key: &ItemKey) -> Result<Option<Attributes>, RequestError> {
        let output = self
            .client
            .get_item()
            .table_name(&self.table)
            .set_key(Some(expressions::key(key)))
            .consistent_read(true)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|error| RequestError::of("GetItem", &self.table, error))?;
        match output.consumed_capacity {
            Some(_) => Ok(output.item),
            None => Err(RequestError::empty("GetItem", &self.table)),
        }
    }
}
