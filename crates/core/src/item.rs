//! Items that cannot be read, and reading one attribute of an item.

use serde_dynamo::{AttributeValue, Item};

use crate::{InvalidCalendar, NameError, OutOfRange};

/// The reason why an item cannot be read as the kind of item that its key names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// An attribute that every such item has is missing.
    #[error("the item has no {attribute}")]
    Missing {
        /// The attribute.
        attribute: String,
    },
    /// An attribute is not of the type that the schema gives it.
    #[error("{attribute} of the item is not {expected}")]
    WrongType {
        /// The attribute.
        attribute: String,
        /// The expected type, with its article.
        expected: &'static str,
    },
    /// A number is outside its range.
    #[error("{attribute} of the item: {source}")]
    OutOfRange {
        /// The attribute.
        attribute: String,
        /// The value and its range.
        source: OutOfRange,
    },
    /// A calendar or its time zone is not known.
    #[error("{attribute} of the item: {source}; if a newer program wrote it, update this one")]
    Calendar {
        /// The attribute.
        attribute: String,
        /// The reason.
        source: InvalidCalendar,
    },
    /// A name is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
}

pub(crate) fn text_of<'a>(item: &'a Item, attribute: &str) -> Result<&'a str, ItemError> {
    match item.inner().get(attribute) {
        Some(AttributeValue::S(text)) => Ok(text),
        Some(_) => Err(wrong_type(attribute, "a string")),
        None => Err(ItemError::Missing { attribute: attribute.to_owned() }),
    }
}

/// The value of a number attribute.
pub(crate) fn number_of<T: std::str::FromStr>(
    attribute: &str,
    value: &AttributeValue,
) -> Result<T, ItemError> {
    let digits = match value {
        AttributeValue::N(digits) => digits.parse().ok(),
        _ => None,
    };
    digits.ok_or_else(|| wrong_type(attribute, "an integer"))
}

pub(crate) fn wrong_type(attribute: &str, expected: &'static str) -> ItemError {
    ItemError::WrongType { attribute: attribute.to_owned(), expected }
}
