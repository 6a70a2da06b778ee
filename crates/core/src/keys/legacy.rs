//! The older layout: one item per limit, `#BUCKET#{resource}#{limit}`, with attributes under their
//! full names. No name holds a `#`, so the `#` before the limit tells such an item from a composite
//! bucket.

use super::bucket_attributes::BucketField;
use super::names::{BUCKET_PREFIX, ENTITY_PREFIX};
use super::range::KeyRange;
use crate::{BucketId, EntityId, LimitName, NameError, Resource};

/// The time at which refill was last added to the balance of a legacy item, epoch milliseconds.
pub const LAST_REFILL: &str = "last_refill_ms";
/// The version of the layout that another producer of the table writes, as `0.8.0`.
pub const OTHER_SCHEMA: &str = "schema_version";
/// The oldest version of another producer that may use the table.
pub const OTHER_CLIENT_MIN: &str = "client_min_version";
/// The map in which the oldest producers keep the attributes of this item.
pub const OTHER_DATA: &str = "data";
/// The layout that every bucket of the table has, as a number: [`COMPOSITE_SCHEMA`].
pub const SCHEMA: &str = "sluicegate_schema";
/// Every bucket is a composite one.
pub const COMPOSITE_SCHEMA: i64 = 1;

/// The attribute of a legacy item that holds this field.
#[must_use]
pub const fn legacy_attribute(field: BucketField) -> &'static str {
    match field {
        BucketField::Tokens => "tokens_milli",
        BucketField::Capacity => "capacity_milli",
        BucketField::Burst => "burst_milli",
        BucketField::RefillAmount => "refill_amount_milli",
        BucketField::RefillPeriod => "refill_period_ms",
        BucketField::Consumed => "total_consumed_milli",
    }
}

/// The identity of a legacy item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LegacyKey {
    /// The bucket that the limit belongs to.
    pub bucket: BucketId,
    /// The limit.
    pub limit: LimitName,
}

impl LegacyKey {
    /// The partition key.
    #[must_use]
    pub fn pk(&self) -> String {
        format!("{ENTITY_PREFIX}{}", self.bucket.entity)
    }

    /// The sort key, at most 202 bytes.
    #[must_use]
    pub fn sk(&self) -> String {
        format!("{BUCKET_PREFIX}{}#{}", self.bucket.resource, self.limit)
    }

    /// Reads the identity back from the two keys; `None` for an item of another kind.
    ///
    /// # Errors
    /// [`NameError`] when a name in them is not allowed.
    pub fn parse(pk: &str, sk: &str) -> Result<Option<Self>, NameError> {
        let names = pk.strip_prefix(ENTITY_PREFIX).zip(sk.strip_prefix(BUCKET_PREFIX));
        let Some((entity, (resource, limit))) =
            names.and_then(|(entity, rest)| Some((entity, rest.split_once('#')?)))
        else {
            return Ok(None);
        };
        let bucket =
            BucketId { entity: EntityId::new(entity)?, resource: Resource::new(resource)? };
        Ok(Some(Self { bucket, limit: LimitName::new(limit)? }))
    }
}

impl KeyRange {
    /// The legacy items of a bucket.
    #[must_use]
    pub fn legacy_items(bucket: &BucketId) -> Self {
        Self::prefix(
            format!("{ENTITY_PREFIX}{}", bucket.entity),
            format!("{BUCKET_PREFIX}{}#", bucket.resource),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{ItemKey, SortKeys};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn legacy_keys_parse_back_and_are_no_other_item(
            entity in "[^#\\p{Cc}]{1,60}",
            resource in "[^#\\p{Cc}]{1,30}",
            limit in "[A-Za-z0-9_.-]{1,64}",
        ) {
            let bucket = BucketId {
                entity: EntityId::new(entity).unwrap(),
                resource: Resource::new(resource).unwrap(),
            };
            let key = LegacyKey { bucket: bucket.clone(), limit: LimitName::new(limit).unwrap() };
            let (pk, sk) = (key.pk(), key.sk());
            prop_assert_eq!(ItemKey::parse(&pk, &sk), Ok(None));
            let range = KeyRange::legacy_items(&bucket);
            let SortKeys::Prefix(prefix) = range.sort else { unreachable!() };
            prop_assert!(range.partition == pk && sk.starts_with(&prefix));
            prop_assert_eq!(LegacyKey::parse(&pk, &sk), Ok(Some(key)));

            let composite = ItemKey::Bucket(bucket.entity, bucket.resource);
            prop_assert!(!composite.sk().starts_with(&prefix));
            prop_assert_eq!(LegacyKey::parse(&composite.pk(), &composite.sk()), Ok(None));
        }
    }

    #[test]
    fn a_bad_name_in_a_legacy_key_is_an_error() {
        for (pk, sk) in [
            ("ENTITY#u", "#BUCKET#gpt-4#"),
            ("ENTITY#u", "#BUCKET#gpt-4#rpm#more"),
            ("ENTITY#u", "#BUCKET##rpm"),
            ("ENTITY#", "#BUCKET#gpt-4#rpm"),
        ] {
            assert!(LegacyKey::parse(pk, sk).is_err(), "{pk} {sk}");
        }
        assert_eq!(LegacyKey::parse("RESOURCE#r", "#BUCKET#gpt-4#rpm"), Ok(None));
    }
}
