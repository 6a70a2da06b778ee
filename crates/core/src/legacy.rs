//! A bucket in the older layout: one item per limit, each with a refill time of its own.
//!
//! Producers from before the composite bucket wrote these. They are read, converted and deleted,
//! never written.

use std::collections::BTreeMap;

use serde_dynamo::Item;

use crate::item::{number_of, text_of};
use crate::keys::{self, BucketField, LegacyKey};
use crate::{BucketId, EpochMillis, ItemError, LimitName, Millitokens, OutOfRange, Refill, Rule};

pub(crate) mod convert;

/// The stored state of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegacyLimit {
    /// Its capacity and its refill.
    pub rule: Rule,
    /// The balance at the last refill; negative for a debt.
    pub tokens: Millitokens,
    /// The time at which refill was last added to the balance.
    pub refilled_at: EpochMillis,
    /// Everything consumed less everything returned; `None` on items from before there was a
    /// counter.
    pub consumed: Option<Millitokens>,
    /// The time at which DynamoDB may delete the item, epoch seconds; `None` keeps it for ever.
    pub expires_at_s: Option<i64>,
}

/// The items of one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyBucket {
    /// The bucket.
    pub bucket: BucketId,
    /// Its limits, at least one.
    pub limits: BTreeMap<LimitName, LegacyLimit>,
}

impl LegacyLimit {
    /// Reads an item; `None` when its keys are not those of a legacy item. The burst may be absent
    /// and is then the capacity.
    ///
    /// # Errors
    /// [`ItemError`] when an attribute is missing, of the wrong type or out of range.
    pub fn from_item(item: &Item) -> Result<Option<(LegacyKey, Self)>, ItemError> {
        let (pk, sk) = (text_of(item, keys::PK)?, text_of(item, keys::SK)?);
        let Some(key) = LegacyKey::parse(pk, sk)? else { return Ok(None) };
        let capacity = required(item, BucketField::Capacity, Millitokens::new)?;
        let burst = field(item, BucketField::Burst, Millitokens::new)?.unwrap_or(capacity);
        let amount = required(item, BucketField::RefillAmount, Millitokens::new)?;
        let refill = required(item, BucketField::RefillPeriod, |ms| Refill::new(amount, ms))?;
        let rule = Rule::with_burst(capacity, burst, refill).map_err(|source| {
            let attribute = keys::legacy_attribute(BucketField::Capacity).to_owned();
            ItemError::OutOfRange { attribute, source }
        })?;
        let refilled_at = ranged(item, keys::LAST_REFILL, EpochMillis::new)?;
        let expires_at_s = item.inner().get(keys::TTL).map(|ttl| number_of(keys::TTL, ttl));
        let limit = Self {
            rule,
            tokens: required(item, BucketField::Tokens, Millitokens::new)?,
            refilled_at: refilled_at.ok_or_else(|| missing(keys::LAST_REFILL))?,
            consumed: field(item, BucketField::Consumed, Millitokens::new)?,
            expires_at_s: expires_at_s.transpose()?,
        };
        Ok(Some((key, limit)))
    }
}

fn required<T>(
    item: &Item,
    of: BucketField,
    new: impl FnOnce(i64) -> Result<T, OutOfRange>,
) -> Result<T, ItemError> {
    field(item, of, new)?.ok_or_else(|| missing(keys::legacy_attribute(of)))
}

fn field<T>(
    item: &Item,
    of: BucketField,
    new: impl FnOnce(i64) -> Result<T, OutOfRange>,
) -> Result<Option<T>, ItemError> {
    ranged(item, keys::legacy_attribute(of), new)
}

fn ranged<T>(
    item: &Item,
    attribute: &str,
    new: impl FnOnce(i64) -> Result<T, OutOfRange>,
) -> Result<Option<T>, ItemError> {
    let Some(value) = item.inner().get(attribute) else { return Ok(None) };
    new(number_of(attribute, value)?)
        .map(Some)
        .map_err(|source| ItemError::OutOfRange { attribute: attribute.to_owned(), source })
}

fn missing(attribute: &str) -> ItemError {
    ItemError::Missing { attribute: attribute.to_owned() }
}

#[cfg(test)]
#[path = "legacy_tests.rs"]
mod tests;
