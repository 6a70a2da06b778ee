//! Reads the attributes of items, and says why an item cannot be read.
//!
//! A function whose name ends with `_of` requires that the item has the attribute.

use std::str::FromStr;

use serde_dynamo::{AttributeValue, Item};

use crate::keys::{self, ItemKey};
use crate::{CalendarRefill, InvalidCalendar, Millitokens, NameError, OutOfRange, Refill, Rule};

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

/// The value of an attribute, of a type that buckets use or of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar<'a> {
    /// A string.
    Text(&'a str),
    /// A number, as DynamoDB spells it.
    Number(&'a str),
    /// Anything else.
    Other,
}

/// The name and the value of an attribute, if the item has the attribute.
pub(crate) type NamedValue<'a> = Option<(&'a str, Scalar<'a>)>;

pub(crate) fn key_of(item: &Item) -> Result<Option<ItemKey>, ItemError> {
    Ok(ItemKey::parse(text_of(item, keys::PK)?, text_of(item, keys::SK)?)?)
}

pub(crate) fn text_of<'a>(item: &'a Item, attribute: &str) -> Result<&'a str, ItemError> {
    required(attribute, text(find(item, attribute))?)
}

pub(crate) fn number_of<N: FromStr>(item: &Item, attribute: &str) -> Result<N, ItemError> {
    required(attribute, number(find(item, attribute))?)
}

pub(crate) fn ranged_of<N: FromStr, T>(
    item: &Item,
    attribute: &str,
    new: impl FnOnce(N) -> Result<T, OutOfRange>,
) -> Result<T, ItemError> {
    required(attribute, ranged(find(item, attribute), new)?)
}

/// Reads the rule of a limit. `fields` are its capacity, its burst, and the amount and the period
/// of its refill. The burst may be absent, and is then the capacity.
pub(crate) fn rule<'a, F: Copy>(
    fields: [F; 4],
    value_of: impl Fn(F) -> NamedValue<'a>,
    name_of: impl Fn(F) -> String,
    calendar_value: NamedValue<'a>,
) -> Result<Rule, ItemError> {
    let [capacity_field, burst_field, amount_field, period_field] = fields;
    let missing = |field| missing(name_of(field));
    let amount = |field| ranged(value_of(field), Millitokens::new)?.ok_or_else(|| missing(field));
    let capacity = amount(capacity_field)?;
    let burst = ranged(value_of(burst_field), Millitokens::new)?.unwrap_or(capacity);
    let refill_amount = amount(amount_field)?;
    let refill = ranged(value_of(period_field), |ms| Refill::new(refill_amount, ms))?
        .ok_or_else(|| missing(period_field))?;
    let refill = match calendar(calendar_value)? {
        Some(at) if refill_amount == Millitokens::ZERO => Refill::by_calendar(burst, at),
        _ => Ok(refill),
    };
    let rule = refill.and_then(|refill| Rule::with_burst(capacity, burst, refill));
    rule.map_err(|source| ItemError::OutOfRange { attribute: name_of(capacity_field), source })
}

fn calendar(value: NamedValue<'_>) -> Result<Option<CalendarRefill>, ItemError> {
    let (Some((name, _)), Some(spelled)) = (value, text(value)?) else { return Ok(None) };
    let wrong = |source| ItemError::Calendar { attribute: name.to_owned(), source };
    spelled.parse().map(Some).map_err(wrong)
}

pub(crate) fn find<'a>(item: &'a Item, attribute: &str) -> NamedValue<'a> {
    item.inner().get_key_value(attribute).map(named)
}

pub(crate) fn named<'a>((name, value): (&'a String, &'a AttributeValue)) -> (&'a str, Scalar<'a>) {
    let value = match value {
        AttributeValue::S(text) => Scalar::Text(text),
        AttributeValue::N(digits) => Scalar::Number(digits),
        _ => Scalar::Other,
    };
    (name, value)
}

pub(crate) fn text(value: NamedValue<'_>) -> Result<Option<&str>, ItemError> {
    match value {
        Some((_, Scalar::Text(text))) => Ok(Some(text)),
        Some((name, _)) => Err(wrong_type(name, "a string")),
        None => Ok(None),
    }
}

pub(crate) fn number<N: FromStr>(value: NamedValue<'_>) -> Result<Option<N>, ItemError> {
    let Some((name, value)) = value else { return Ok(None) };
    let digits = match value {
        Scalar::Number(digits) => digits.parse().ok(),
        _ => None,
    };
    digits.map(Some).ok_or_else(|| wrong_type(name, "an integer"))
}

pub(crate) fn ranged<N: FromStr, T>(
    value: NamedValue<'_>,
    new: impl FnOnce(N) -> Result<T, OutOfRange>,
) -> Result<Option<T>, ItemError> {
    let (Some((name, _)), Some(number)) = (value, number(value)?) else { return Ok(None) };
    new(number)
        .map(Some)
        .map_err(|source| ItemError::OutOfRange { attribute: name.to_owned(), source })
}

pub(crate) fn required<T>(attribute: &str, value: Option<T>) -> Result<T, ItemError> {
    value.ok_or_else(|| missing(attribute.to_owned()))
}

fn missing(attribute: String) -> ItemError {
    ItemError::Missing { attribute }
}

pub(crate) fn wrong_type(attribute: &str, expected: &'static str) -> ItemError {
    ItemError::WrongType { attribute: attribute.to_owned(), expected }
}
