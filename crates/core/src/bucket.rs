//! The composite bucket: every balance of one entity and one resource, in one item.
//!
//! Decoding checks what the types promise; encoding writes the item that decodes to the same value.
//! Items of other producers of the same schema may lack the attributes that only this crate writes.

use std::collections::{BTreeMap, HashMap};

use serde_dynamo::{AttributeValue, Item};

use crate::keys::{self, BucketField, ItemKey};
use crate::{
    BucketId, ConfigStamp, EntityId, EpochMillis, LimitName, MillitokenSum, Millitokens, RequestId,
    Resource, Rule, RulesHash,
};

mod read;

/// The balance of one limit in a bucket, with its rule and its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LimitBalance {
    /// Its capacity and its refill.
    pub rule: Rule,
    /// The stored balance, without the refill since the last claim; negative for a debt.
    pub tokens: Millitokens,
    /// Everything consumed less everything returned since the item was created.
    pub consumed: MillitokenSum,
}

/// A bucket: the balances of all limits of one entity and one resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CompositeBucket {
    /// The entity that is limited.
    pub entity: EntityId,
    /// The resource that is limited.
    pub resource: Resource,
    /// The time of the last refill claim, for all limits together.
    pub refilled_at: EpochMillis,
    /// The balances by limit.
    pub limits: BTreeMap<LimitName, LimitBalance>,
    /// The time at which DynamoDB may delete the item, epoch seconds; `None` keeps it for ever.
    pub expires_at_s: Option<i64>,
    /// The stored limits that the item follows.
    pub config_stamp: ConfigStamp,
    /// Hash of all rules; absent on items of other producers.
    pub rules_hash: Option<RulesHash>,
    /// The ids of the last writes and of those that they fenced, newest first, at most four.
    pub request_ids: Vec<RequestId>,
}

impl CompositeBucket {
    /// The key of the item.
    #[must_use]
    pub fn key(&self) -> ItemKey {
        ItemKey::Bucket(self.entity.clone(), self.resource.clone())
    }

    /// The name of the bucket.
    #[must_use]
    pub fn id(&self) -> BucketId {
        BucketId { entity: self.entity.clone(), resource: self.resource.clone() }
    }

    /// True if some calendar limit has a boundary after the first instant, up to the second.
    pub(crate) fn has_boundary(&self, after: EpochMillis, until: EpochMillis) -> bool {
        self.limits.values().any(|balance| {
            let refill = balance.rule.refill();
            refill.calendar().is_some() && refill.accrued_between(after, until) > 0
        })
    }

    /// Writes the whole item, keys and index keys included.
    #[must_use]
    pub fn to_item(&self) -> Item {
        let key = self.key();
        let mut item = HashMap::from([
            (keys::PK.to_owned(), AttributeValue::S(key.pk())),
            (keys::SK.to_owned(), AttributeValue::S(key.sk())),
            (keys::ENTITY_ID.to_owned(), AttributeValue::S(self.entity.to_string())),
            (keys::RESOURCE.to_owned(), AttributeValue::S(self.resource.to_string())),
            (keys::REFILLED_AT.to_owned(), number(self.refilled_at.get())),
        ]);
        if let Some((gsi2pk, gsi2sk)) = key.gsi2_keys() {
            item.insert(keys::GSI2.pk.to_owned(), AttributeValue::S(gsi2pk));
            item.insert(keys::GSI2.sk.to_owned(), AttributeValue::S(gsi2sk));
        }
        if let Some(expires_at_s) = self.expires_at_s {
            item.insert(keys::TTL.to_owned(), number(expires_at_s));
        }
        match self.config_stamp {
            ConfigStamp::None => {}
            ConfigStamp::Epoch(epoch) => {
                item.insert(keys::CONFIG_EPOCH.to_owned(), number(epoch.get()));
            }
            ConfigStamp::Versions(versions) => {
                let versions = AttributeValue::S(versions.to_string());
                item.insert(keys::CONFIG_VERSIONS.to_owned(), versions);
            }
        }
        if let Some(hash) = &self.rules_hash {
            item.insert(keys::RULES_HASH.to_owned(), AttributeValue::S(hash.as_str().to_owned()));
        }
        for (name, id) in keys::REQUEST_IDS.iter().zip(&self.request_ids) {
            item.insert((*name).to_owned(), AttributeValue::S(id.as_str().to_owned()));
        }
        for (limit, balance) in &self.limits {
            for field in BucketField::ALL {
                item.insert(keys::bucket_attribute(limit, field), number(balance.field(field)));
            }
            if let Some(calendar) = balance.rule.refill().calendar() {
                let calendar = AttributeValue::S(calendar.to_string());
                item.insert(keys::calendar_attribute(limit), calendar);
            }
        }
        Item::from(item)
    }
}

impl LimitBalance {
    fn field(&self, field: BucketField) -> i128 {
        let number = match field {
            BucketField::Tokens => self.tokens.get(),
            BucketField::Capacity => self.rule.capacity().get(),
            BucketField::Burst => self.rule.burst().get(),
            BucketField::RefillAmount => self.rule.refill().even_amount().get(),
            BucketField::RefillPeriod => self.rule.refill().period_ms(),
            BucketField::Consumed => return self.consumed.get(),
        };
        number.into()
    }
}

fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, by_calendar, milli, name};
    use crate::{LevelVersions, Refill};
    use proptest::prelude::*;

    fn balance() -> impl Strategy<Value = LimitBalance> {
        let any = Millitokens::MIN.get()..=Millitokens::MAX.get();
        let sum = MillitokenSum::MIN.get()..=MillitokenSum::MAX.get();
        let positive = 0..=Millitokens::MAX.get();
        (any, sum, positive.clone(), positive.clone(), positive, 1..=Refill::MAX_PERIOD_MS)
            .prop_map(|(tokens, consumed, capacity, burst, amount, period_ms)| {
                let refill = Refill::new(milli(amount), period_ms).unwrap();
                let evenly = Rule::with_burst(milli(capacity), milli(burst), refill).unwrap();
                let calendar = by_calendar(burst, "month@15/Europe/Berlin,debt=forgiven");
                LimitBalance {
                    rule: if period_ms % 4 == 0 { calendar } else { evenly },
                    tokens: milli(tokens),
                    consumed: MillitokenSum::new(consumed).unwrap(),
                }
            })
    }

    fn stamp() -> impl Strategy<Value = ConfigStamp> {
        prop_oneof![
            Just(ConfigStamp::None),
            (0..=EpochMillis::MAX.get()).prop_map(|epoch| ConfigStamp::Epoch(at(epoch))),
            any::<[u64; 4]>().prop_map(|of| ConfigStamp::Versions(LevelVersions(of))),
        ]
    }

    fn composite() -> impl Strategy<Value = CompositeBucket> {
        (
            "[^#\\p{Cc}]{1,20}",
            "[^#\\p{Cc}]{1,20}",
            0..=EpochMillis::MAX.get(),
            proptest::collection::btree_map("[A-Za-z0-9_.-]{1,10}", balance(), 0..5),
            proptest::option::of(0..i64::MAX),
            stamp(),
            proptest::option::of("[a-z0-9]{8}"),
            proptest::collection::vec("[a-z0-9]{8}", 0..=4),
        )
            .prop_map(|(entity, resource, rf, limits, ttl, config_stamp, hash, ids)| {
                CompositeBucket {
                    entity: EntityId::new(entity).unwrap(),
                    resource: Resource::new(resource).unwrap(),
                    refilled_at: at(rf),
                    limits: limits
                        .into_iter()
                        .map(|(limit, balance)| (name(&limit), balance))
                        .collect(),
                    expires_at_s: ttl,
                    config_stamp,
                    rules_hash: hash.map(|hash| RulesHash::stored(&hash)),
                    request_ids: ids.iter().map(|id| RequestId::stored(id)).collect(),
                }
            })
    }

    proptest! {
        #[test]
        fn an_item_decodes_to_what_it_was_encoded_from(composite in composite()) {
            prop_assert_eq!(CompositeBucket::from_item(&composite.to_item()), Ok(Some(composite)));
        }
    }

    /// The item of the reference schema, as another producer writes it.
    fn foreign() -> HashMap<String, AttributeValue> {
        let text = |s: &str| AttributeValue::S(s.to_owned());
        let mut item = HashMap::from([
            ("PK".to_owned(), text("ENTITY#user-123")),
            ("SK".to_owned(), text("#BUCKET#gpt-4")),
            ("entity_id".to_owned(), text("user-123")),
            ("resource".to_owned(), text("gpt-4")),
            ("GSI2PK".to_owned(), text("RESOURCE#gpt-4")),
            ("GSI2SK".to_owned(), text("BUCKET#user-123")),
        ]);
        for (name, value) in [
            ("rf", 1_706_000_000),
            ("ttl", 1_704_067_200),
            ("b_rpm_tk", 99_000),
            ("b_rpm_cp", 100_000),
            ("b_rpm_bx", 100_000),
            ("b_rpm_ra", 100_000),
            ("b_rpm_rp", 60_000),
            ("b_rpm_tc", 1_000),
        ] {
            item.insert(name.to_owned(), number(value));
        }
        item
    }

    #[test]
    fn an_item_of_another_producer_is_read() {
        let bucket = CompositeBucket::from_item(&foreign().into()).unwrap().unwrap();
        assert_eq!(bucket.rules_hash, None);
        let rpm = bucket.limits[&LimitName::new("rpm").unwrap()];
        assert_eq!((rpm.tokens.get(), rpm.consumed.get()), (99_000, 1_000));
        assert_eq!(bucket.to_item().inner(), &foreign());
    }

    #[test]
    fn calendar_limit_looks_like_a_quota_to_producers_that_do_not_know_it() {
        let mut item = foreign();
        let text = |s: &str| AttributeValue::S(s.to_owned());
        item.insert("b_rpm_cal".into(), text("month@15/Europe/Berlin"));
        let rule = |item: &HashMap<String, AttributeValue>| {
            let read = CompositeBucket::from_item(&item.clone().into());
            read.map(|bucket| bucket.unwrap().limits[&name("rpm")].rule)
        };
        // Left behind by a limit that refills evenly by now.
        assert_eq!(rule(&item).unwrap().refill().calendar(), None);
        item.insert("b_rpm_ra".into(), number(0));
        assert_eq!(rule(&item), Ok(by_calendar(100_000, "month@15/Europe/Berlin")));
        item.insert("b_rpm_cal".into(), text("month@15/Europe/Bonn"));
        let error = rule(&item).unwrap_err().to_string();
        assert!(error.starts_with("b_rpm_cal of the item: \"Europe/Bonn\" is not"), "{error}");
        item.insert("b_rpm_cal".into(), number(1));
        assert_eq!(rule(&item).unwrap_err().to_string(), "b_rpm_cal of the item is not a string");
    }

    #[test]
    fn a_missing_burst_is_the_capacity() {
        let mut item = foreign();
        item.remove("b_rpm_bx");
        let bucket = CompositeBucket::from_item(&item.into()).unwrap().unwrap();
        let rpm = bucket.limits[&LimitName::new("rpm").unwrap()];
        assert_eq!(rpm.rule.burst().get(), 100_000);
    }

    #[test]
    fn broken_items_say_which_attribute_is_broken() {
        for (attribute, value, message) in [
            ("b_rpm_tk", None, "the item has no b_rpm_tk"),
            ("rf", None, "the item has no rf"),
            (
                "b_rpm_tc",
                Some(AttributeValue::N("1.5".into())),
                "b_rpm_tc of the item is not an integer",
            ),
            (
                "b_rpm_rp",
                Some(number(0)),
                "b_rpm_rp of the item: refill period in milliseconds 0 is out of range: it must lie between 1 and 1000000000000",
            ),
        ] {
            let mut item = foreign();
            item.remove(attribute);
            item.extend(value.map(|value| (attribute.to_owned(), value)));
            let error = CompositeBucket::from_item(&item.into()).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn other_items_are_none() {
        let mut item = foreign();
        item.insert("SK".into(), AttributeValue::S("#META".into()));
        assert_eq!(CompositeBucket::from_item(&item.into()), Ok(None));
    }
}
