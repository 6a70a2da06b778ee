//! Stored limits, entities and usage, through the limiter. The requests of this process follow its
//! own changes at once; other processes follow within a minute. Tokens that a process has leased
//! are handed out as before, for as long as they may be held.

use sluicegate_core::keys::LimitsScope;
use sluicegate_core::{EntityId, EntityRecord, LimitName, StoredLimits};

use crate::DynamoStore;
use crate::dynamo::{ConfigError, Reader};
use crate::limit::Limit;
use crate::limiter::Limiter;

impl Limiter {
    /// Stores limits, from 1 to 50, all or none of them; other limits of the scope stay as they
    /// are.
    ///
    /// A request takes each limit that it does not name itself from the narrowest scope that has
    /// it: entity and resource, entity, resource, system.
    ///
    /// # Errors
    /// [`ConfigError`]; invalid limits are refused before any call.
    pub async fn set_limits(
        &self,
        scope: &LimitsScope,
        limits: &[Limit],
    ) -> Result<StoredLimits, ConfigError> {
        let (store, clock) = (self.dynamo()?, self.clock());
        let stored = store.table().config().set_limits(scope, limits, clock.now()).await;
        store.directory.note_limits(scope, stored.as_ref().ok(), clock.now());
        stored
    }

    /// Deletes limits of a scope by name. Buckets that have them drop them, unless another scope or
    /// a request names them.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub async fn delete_limits(
        &self,
        scope: &LimitsScope,
        limits: &[LimitName],
    ) -> Result<Option<StoredLimits>, ConfigError> {
        let (store, clock) = (self.dynamo()?, self.clock());
        let left = store.table().config().delete_limits(scope, limits, clock.now()).await;
        let known = left.as_ref().ok().and_then(Option::as_ref);
        store.directory.note_limits(scope, known, clock.now());
        left
    }

    /// The limits of a scope; `None` if it never had any. A strongly consistent read.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub async fn stored_limits(
        &self,
        scope: &LimitsScope,
    ) -> Result<Option<StoredLimits>, ConfigError> {
        self.dynamo()?.table().config().get_limits(scope).await
    }

    /// Stores the parent of an entity, and if its requests take from the parent's bucket too.
    ///
    /// # Errors
    /// [`ConfigError`]; an entity cannot be its own parent.
    pub async fn put_entity(&self, record: &EntityRecord) -> Result<(), ConfigError> {
        let store = self.dynamo()?;
        let put = store.table().config().put_entity(record).await;
        let known = put.as_ref().ok().map(|()| Some(record));
        store.directory.note_entity(&record.entity, known, self.clock().now());
        put
    }

    /// The stored record of an entity; `None` if there is none.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub async fn entity(&self, entity: &EntityId) -> Result<Option<EntityRecord>, ConfigError> {
        self.dynamo()?.table().config().get_entity(entity).await
    }

    /// Deletes the stored record of an entity; its buckets and usage stay.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub async fn delete_entity(&self, entity: &EntityId) -> Result<(), ConfigError> {
        let store = self.dynamo()?;
        let deleted = store.table().config().delete_entity(entity).await;
        let known = deleted.as_ref().ok().map(|()| None);
        store.directory.note_entity(entity, known, self.clock().now());
        deleted
    }

    /// Reads usage windows, buckets of a resource, and children.
    ///
    /// # Errors
    /// [`ConfigError::NotDynamo`].
    pub fn reader(&self) -> Result<Reader, ConfigError> {
        Ok(self.dynamo()?.table().reader())
    }

    fn dynamo(&self) -> Result<&DynamoStore, ConfigError> {
        self.store().ok_or(ConfigError::NotDynamo)
    }
}
