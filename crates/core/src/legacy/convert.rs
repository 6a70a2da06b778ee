//! From one item per limit to the one item of all limits, at one refill time.
//!
//! The newest refill time of the items becomes that of all of them: what a limit accrued since its
//! own is added to its balance, up to the burst. From then on the balances are worth what they were
//! worth before, at any time.

use serde_dynamo::{AttributeValue, Item};

use super::{LegacyBucket, LegacyLimit};
use crate::clock::is_ahead;
use crate::keys::{self, BucketField, LegacyKey};
use crate::{CompositeBucket, EpochMillis, LimitBalance, Millitokens, RulesHash, expiry};

/// Limits of one bucket that can be converted: a transaction writes a hundred items, and one of
/// them is the composite bucket.
pub const LEGACY_LIMITS_MAX: usize = 99;

/// One transaction: all of it happens or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversion {
    /// Put on condition that there is no item: the bucket, marked as converted.
    pub composite: CompositeBucket,
    /// The items that it is made of, each deleted as it was seen.
    pub removals: Vec<Removal>,
}

/// The deletion of one legacy item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The item.
    pub key: LegacyKey,
    /// The conditions of the removal: all of them must hold.
    pub conditions: Vec<Unchanged>,
}

/// An attribute is as it was seen. Every write of an older producer moves one of them, so none is
/// lost that came after the item was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unchanged {
    /// The attribute.
    pub attribute: &'static str,
    /// Its value; `None`: the item does not have it.
    pub seen: Option<i64>,
}

/// A bucket has more limits than one transaction can convert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has {limits} limits, and {LEGACY_LIMITS_MAX} at most can be converted; delete some")]
pub struct TooManyLimits {
    /// The number of its limits.
    pub limits: usize,
}

impl LegacyBucket {
    /// The conversion of these items, as they are at `now`.
    ///
    /// A refill time that is more than a minute ahead of `now` counts as `now`, and nothing accrued
    /// until then: one bad clock would stop refill for all limits.
    ///
    /// # Errors
    /// [`TooManyLimits`] when there are more than [`LEGACY_LIMITS_MAX`].
    pub fn convert(&self, now: EpochMillis) -> Result<Conversion, TooManyLimits> {
        self.fit()?;
        let removals = self.limits.iter().map(|(limit, item)| {
            let key = LegacyKey { bucket: self.bucket.clone(), limit: limit.clone() };
            Removal { key, conditions: item.unchanged() }
        });
        Ok(Conversion { composite: self.composite(now), removals: removals.collect() })
    }

    /// The composite bucket that these items come to, however many they are.
    #[must_use]
    pub fn composite(&self, now: EpochMillis) -> CompositeBucket {
        let items = self.limits.values();
        let refilled_at = items.map(|item| item.known_refill(now)).max().unwrap_or(now);
        let limits: std::collections::BTreeMap<_, _> = self
            .limits
            .iter()
            .map(|(limit, item)| (limit.clone(), item.refilled(refilled_at, now)))
            .collect();
        let rules = limits.iter().map(|(limit, balance)| (limit, &balance.rule));
        CompositeBucket {
            entity: self.bucket.entity.clone(),
            resource: self.bucket.resource.clone(),
            refilled_at,
            rules_hash: Some(RulesHash::of(rules)),
            expires_at_s: self.expires_at_s(limits.values(), refilled_at),
            limits,
            config_stamp: crate::ConfigStamp::None,
            request_ids: Vec::new(),
        }
    }

    /// The bucket that they will be converted to, for readers. A refill time that is more than a
    /// minute ahead stays. Read as `now` each time, it would never let anything accrue; the writer
    /// that finds the bucket short corrects it.
    ///
    /// # Errors
    /// [`TooManyLimits`] when there are more than [`LEGACY_LIMITS_MAX`].
    pub fn seen(&self, now: EpochMillis) -> Result<CompositeBucket, TooManyLimits> {
        self.fit()?;
        let mut seen = self.composite(now);
        let newest = self.limits.values().map(|item| item.refilled_at).max();
        seen.refilled_at = newest.unwrap_or(now).max(seen.refilled_at);
        Ok(seen)
    }

    fn fit(&self) -> Result<(), TooManyLimits> {
        let limits = self.limits.len();
        if limits > LEGACY_LIMITS_MAX { Err(TooManyLimits { limits }) } else { Ok(()) }
    }

    /// The latest expiry of the items and of the bucket itself; `None` if one of them never expires.
    fn expires_at_s<'a>(
        &self,
        balances: impl IntoIterator<Item = &'a LimitBalance>,
        refilled_at: EpochMillis,
    ) -> Option<i64> {
        let mut latest = expiry::expiry_s(balances, refilled_at)?;
        for item in self.limits.values() {
            latest = latest.max(item.expires_at_s?);
        }
        Some(latest)
    }
}

impl LegacyLimit {
    fn known_refill(&self, now: EpochMillis) -> EpochMillis {
        if is_ahead(self.refilled_at, now) { now } else { self.refilled_at }
    }

    fn refilled(&self, at: EpochMillis, now: EpochMillis) -> LimitBalance {
        let tokens = self.rule.effective(self.tokens, self.known_refill(now), at);
        LimitBalance { rule: self.rule, tokens, consumed: self.consumed.unwrap_or_default().into() }
    }

    fn unchanged(&self) -> Vec<Unchanged> {
        let seen = |attribute, seen| Unchanged { attribute, seen };
        vec![
            seen(keys::legacy_attribute(BucketField::Tokens), Some(self.tokens.get())),
            seen(keys::LAST_REFILL, Some(self.refilled_at.get())),
            seen(
                keys::legacy_attribute(BucketField::Consumed),
                self.consumed.map(Millitokens::get),
            ),
        ]
    }
}

impl Conversion {
    /// The composite item, marked as converted: its earlier consumption is not metered again.
    #[must_use]
    pub fn to_item(&self) -> Item {
        let mut attributes = self.composite.to_item().into_inner();
        attributes.insert(keys::MIGRATED.to_owned(), AttributeValue::N("1".to_owned()));
        Item::from(attributes)
    }
}
