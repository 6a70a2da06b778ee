//! Reads items of the table as values, and describes those that cannot be read.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_dynamo::Item;
use sluicegate_core::{ItemError, keys};

/// An item in the form of the SDK.
pub(super) type Attributes = HashMap<String, AttributeValue>;

/// An item of the table that cannot be read as the kind that its key names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the item {pk} / {sk} cannot be read; repair or delete it")]
pub struct BrokenItem {
    /// Its partition key.
    pub pk: String,
    /// Its sort key.
    pub sk: String,
    /// The reason.
    pub source: ItemError,
}

/// Reads an item; `None` for one of another kind. The error is boxed because it is rare and large.
pub(super) fn decode<T>(
    attributes: Attributes,
    from_item: fn(&Item) -> Result<Option<T>, ItemError>,
) -> Result<Option<T>, Box<BrokenItem>> {
    let item = Item::from(attributes);
    from_item(&item).map_err(|source| {
        let text = |attribute: &str| match item.inner().get(attribute) {
            Some(serde_dynamo::AttributeValue::S(text)) => text.clone(),
            _ => String::new(),
        };
        Box::new(BrokenItem { pk: text(keys::PK), sk: text(keys::SK), source })
    })
}
