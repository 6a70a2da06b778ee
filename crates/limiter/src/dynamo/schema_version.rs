//! The layouts that the producers of the table write, as far as the table says.

use aws_sdk_dynamodb::types::AttributeValue;
use sluicegate_core::keys::{self, ItemKey};

use super::stored::{ConfigError, ConfigStore};
use crate::dynamo::stored_expressions as expressions;

/// The table's record of its layout. Another producer keeps its own attributes in the same item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchemaVersion {
    /// The note of this library: 1 once every bucket is a composite one.
    pub schema: Option<i64>,
    /// The version of the layout that another producer writes, such as `0.8.0`.
    pub other_schema: Option<String>,
    /// The oldest version of another producer that may use the table.
    pub other_client_min: Option<String>,
}

impl ConfigStore {
    /// Reads the table's record of its layout. A consistent read.
    ///
    /// # Errors
    /// [`ConfigError::Request`].
    pub async fn schema_version(&self) -> Result<SchemaVersion, ConfigError> {
        let item = self.item(&ItemKey::SchemaVersion).await?.unwrap_or_default();
        let data = item.get(keys::OTHER_DATA).and_then(|data| data.as_m().ok());
        let text = |attribute: &str| match item.get(attribute).or_else(|| data?.get(attribute)) {
            Some(AttributeValue::S(text) | AttributeValue::N(text)) => Some(text.clone()),
            _ => None,
        };
        Ok(SchemaVersion {
            schema: text(keys::SCHEMA).and_then(|version| version.parse().ok()),
            other_schema: text(keys::OTHER_SCHEMA),
            other_client_min: text(keys::OTHER_CLIENT_MIN),
        })
    }

    /// Notes that every bucket of the table is a composite one. One write unit.
    ///
    /// # Errors
    /// [`ConfigError::Request`].
    pub async fn note_converted(&self) -> Result<(), ConfigError> {
        let update = expressions::set_schema(keys::COMPOSITE_SCHEMA);
        self.change(&ItemKey::SchemaVersion, update, |_| Ok(Some(()))).await.map(drop)
    }
}
