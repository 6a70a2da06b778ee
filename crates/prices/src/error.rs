//! Errors of price lists.

use chrono::DateTime;
use sluicegate_core::EpochMillis;

/// A price list that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// The list is not JSON, or its outermost object has other fields.
    #[error("the price list cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The currency does not name a limit.
    #[error("the price list's currency {code:?} is unknown: give a code such as \"USD\"")]
    UnknownCurrency {
        /// The text in its place.
        code: String,
    },
    /// The entry of a model has an unknown field, lacks one, or is no entry.
    #[error("the entry of the model {model:?} cannot be read: {source} of the entry")]
    Entry {
        /// The name of the model.
        model: String,
        /// The reason, with the name of the field.
        source: serde_json::Error,
    },
    /// A price is not a number, or not in the range of [`Price`](crate::Price).
    #[error(
        "the price {field:?} of the model {model:?} is {text}: give a number from 0 to a billion, \
         with at most 27 decimals for one token"
    )]
    InvalidPrice {
        /// The name of the model.
        model: String,
        /// The name of the field.
        field: &'static str,
        /// The JSON in its place, cut to 80 characters.
        text: String,
    },
    /// The date from which prices hold is not one.
    #[error("the date \"from\" of the model {model:?} is {text:?}: write it as 2026-01-31")]
    InvalidDate {
        /// The name of the model.
        model: String,
        /// The text in its place.
        text: String,
    },
    /// The list has a model twice, or two prices of a model from the same date.
    #[error("the model {model:?} has two entries for the same time: remove one")]
    Duplicate {
        /// The name of the model.
        model: String,
    },
}

/// There is no price for a resource at a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the resource {resource:?} has no price on {}: add one to the price list", date(*.at))]
pub struct UnknownPrice {
    /// The resource, such as a model.
    pub resource: String,
    /// The time of the request.
    pub at: EpochMillis,
}

fn date(at: EpochMillis) -> String {
    DateTime::from_timestamp_millis(at.get()).unwrap_or_default().date_naive().to_string()
}
