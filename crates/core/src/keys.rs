//! Builds and parses every key and attribute name of the table.
//!
//! No other module of a shipped crate spells `#BUCKET#` or `b_`, apart from tests and examples.
//! (`record.rs` spells `PK` and `SK`, because serde needs literals.) A key parses back to its
//! names, because no name contains `#`. The name of an attribute, `b_{limit}_{field}`, parses back
//! too, because no field (`BucketField`) contains `_`.

mod alerts;
mod bucket_attributes;
mod item_key;
mod legacy;
mod names;
mod quarantine;
mod range;
mod scope;
mod shard;
mod stored;
mod usage_attributes;

pub use alerts::{
    ALERT_AMOUNT, ALERT_LIMIT, ALERT_START, ALERT_SUM, ALERT_THRESHOLD, ALERT_WINDOW, ATTEMPTS,
    AlertId, CLAIMED_ALERTS, FAILED, NEXT_AT, OutboxId, SENT, amount_attribute, claim_text,
    parse_amount_attribute, parse_thresholds_attribute, thresholds_attribute,
};
pub use bucket_attributes::{
    BucketField, CONFIG_EPOCH, CONFIG_VERSIONS, ENTITY_ID, MIGRATED, NO_REQUEST_ID, REFILLED_AT,
    REQUEST_IDS, RESOURCE, RULES_HASH, bucket_attribute, calendar_attribute, is_metered,
    parse_bucket_attribute, parse_calendar_attribute, parse_counter_attribute,
};
pub use item_key::ItemKey;
pub use legacy::{
    COMPOSITE_SCHEMA, LAST_REFILL, LegacyKey, OTHER_CLIENT_MIN, OTHER_DATA, OTHER_SCHEMA, SCHEMA,
    legacy_attribute,
};
pub use names::{BUCKET_PREFIX, GSI1, GSI2, Index, MARK_FINGERPRINT, PK, SK, TTL};
pub use quarantine::{
    COUNTED_LIMITS, DONE, DROPPED, Digest, OPEN, QuarantineId, REASON, RECORD, STATE, TRUNCATED,
};
pub use range::{
    KeyRange, SortKeys, gsi1_keys, parse_child, parse_index_resource, usage_index_keys,
};
pub use scope::LimitsScope;
pub use shard::{ShardKey, WRITE_CAPACITY_LIMIT};
pub use stored::{
    CASCADE, LIMITS_VERSION, LimitField, PARENT_ID, UPDATED_AT, limit_attribute,
    parse_limit_attribute,
};
pub use usage_attributes::{EVENTS, parse_usage_attribute, usage_attribute, watermark_attribute};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LimitName;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn attributes_of_a_limit_parse_back(limit in "[A-Za-z0-9_.-]{1,64}") {
            let limit = LimitName::new(limit).unwrap();
            for field in BucketField::ALL {
                let attribute = bucket_attribute(&limit, field);
                prop_assert_eq!(parse_bucket_attribute(&attribute), Some((limit.as_str(), field)));
                let counter = (field == BucketField::Consumed).then_some(limit.as_str());
                prop_assert_eq!(parse_counter_attribute(&attribute), counter);
            }
            let calendar = calendar_attribute(&limit);
            prop_assert_eq!(parse_calendar_attribute(&calendar), Some(limit.as_str()));
            prop_assert_eq!(parse_bucket_attribute(&calendar), None);
            let usage = usage_attribute(&limit);
            prop_assert_eq!(parse_usage_attribute(&usage), Some(limit.as_str()));
            let amount = amount_attribute(&limit);
            prop_assert_eq!(parse_amount_attribute(&amount), Some(limit.as_str()));
            prop_assert_eq!(parse_usage_attribute(&amount), None);
            let thresholds = thresholds_attribute(&limit);
            prop_assert_eq!(parse_thresholds_attribute(&thresholds), Some(limit.as_str()));
        }
    }
}
