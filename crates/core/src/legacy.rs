//! A bucket in the older layout: one item per limit, each with a refill time of its own.
//!
//! Producers from before the composite bucket wrote these. They are read, converted and deleted,
//! never written.

use std::collections::BTreeMap;

use serde_dynamo::Item;

use crate::item::{self, find, number, ranged, ranged_of, text_of};
use crate::keys::{self, BucketField, LegacyKey};
use crate::{BucketId, EpochMillis, ItemError, LimitName, Millitokens, Rule};

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
        let value = |field| find(item, keys::legacy_attribute(field));
        let name = |field| keys::legacy_attribute(field).to_owned();
        let limit = Self {
            rule: item::rule(BucketField::RULE, value, name, None)?,
            tokens: ranged_of(item, &name(BucketField::Tokens), Millitokens::new)?,
            refilled_at: ranged_of(item, keys::LAST_REFILL, EpochMillis::new)?,
            consumed: ranged(value(BucketField::Consumed), Millitokens::new)?,
            expires_at_s: number(find(item, keys::TTL))?,
        };
        Ok(Some((key, limit)))
    }
}

#[cfg(test)]
#[path = "legacy_tests.rs"]
mod tests;
