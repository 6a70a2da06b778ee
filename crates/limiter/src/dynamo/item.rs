//! Items of the table as values, and those that cannot be.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_dynamo::Item;
use sluicegate_core::{ItemError, keys};

/// An item as the SDK has it.
pub(super) type Attributes = HashMap<String, AttributeValue>;

/// An item that stands in the table and cannot be read as what its key says it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the item {pk} / {sk} cannot be read; repair or delete it")]
pub struct BrokenItem {
    /// Its partition key.
    pub pk: String,
    /// Its sort key.
    pub sk: String,
    /// What is wrong with it.
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
