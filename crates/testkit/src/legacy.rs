//! The writes of a producer of the older layout: one item per limit, under full names.

use std::collections::HashMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{AttributeValue, PutRequest, WriteRequest};
use sluicegate_core::fixtures::{bucket, milli, name};
use sluicegate_core::keys::{self, BucketField, GSI2, LegacyKey, legacy_attribute};
use sluicegate_core::{EpochMillis, LegacyLimit, Millitokens, Refill, Rule};

use crate::usage::scan;

type Attributes = HashMap<String, AttributeValue>;

/// The most items of one BatchWriteItem.
const BATCH: usize = 25;

/// The key of one limit's item.
///
/// # Panics
/// If a name is not allowed.
#[must_use]
pub fn key(entity: &str, resource: &str, limit: &str) -> LegacyKey {
    LegacyKey { bucket: bucket(entity, resource), limit: name(limit) }
}

/// A bucket of so many tokens a minute.
///
/// # Panics
/// If an amount is out of range.
#[must_use]
pub fn per_minute(tokens: i64, left_milli: i64, refilled_at: EpochMillis) -> LegacyLimit {
    let amount = Millitokens::from_tokens(tokens).unwrap();
    let rule = Rule::new(amount, Refill::new(amount, 60_000).unwrap()).unwrap();
    let (tokens, consumed) = (milli(left_milli), milli(amount.get() - left_milli));
    LegacyLimit { rule, tokens, refilled_at, consumed: Some(consumed), expires_at_s: None }
}

/// The whole item.
///
/// # Panics
/// Never.
#[must_use]
pub fn item(key: &LegacyKey, bucket: &LegacyLimit) -> Attributes {
    let text = |text: String| AttributeValue::S(text);
    let number = |number: i64| AttributeValue::N(number.to_string());
    let (entity, resource) = (key.bucket.entity.to_string(), key.bucket.resource.to_string());
    let mut item = Attributes::from([
        (keys::PK.to_owned(), text(key.pk())),
        (keys::SK.to_owned(), text(key.sk())),
        (keys::ENTITY_ID.to_owned(), text(entity.clone())),
        (keys::RESOURCE.to_owned(), text(resource.clone())),
        ("limit_name".to_owned(), text(key.limit.to_string())),
        (GSI2.pk.to_owned(), text(format!("RESOURCE#{resource}"))),
        (GSI2.sk.to_owned(), text(format!("BUCKET#{entity}#{}", key.limit))),
        (keys::LAST_REFILL.to_owned(), number(bucket.refilled_at.get())),
    ]);
    let rule = bucket.rule;
    for (field, value) in [
        (BucketField::Tokens, Some(bucket.tokens)),
        (BucketField::Capacity, Some(rule.capacity())),
        (BucketField::Burst, Some(rule.burst())),
        (BucketField::RefillAmount, Some(rule.refill().amount())),
        (BucketField::Consumed, bucket.consumed),
    ] {
        let value = value.map(|value| (legacy_attribute(field).to_owned(), number(value.get())));
        item.extend(value);
    }
    let period = legacy_attribute(BucketField::RefillPeriod).to_owned();
    item.insert(period, number(rule.refill().period_ms()));
    item.extend(bucket.expires_at_s.map(|ttl| (keys::TTL.to_owned(), number(ttl))));
    item
}

/// Writes items as an older producer leaves them.
///
/// # Panics
/// If the engine refuses.
pub async fn put(client: &Client, table: &str, items: impl IntoIterator<Item = Attributes>) {
    let put = |item| PutRequest::builder().set_item(Some(item)).build().unwrap();
    let write = |item| WriteRequest::builder().put_request(put(item)).build();
    let writes: Vec<_> = items.into_iter().map(write).collect();
    for some in writes.chunks(BATCH) {
        let batch = client.batch_write_item().request_items(table, some.to_vec());
        let left = batch.send().await.unwrap().unprocessed_items.unwrap_or_default();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Takes from one limit if its item still exists; returns true if it did.
///
/// # Panics
/// If the engine fails.
pub async fn consume(client: &Client, table: &str, key: &LegacyKey, milli: i64) -> bool {
    let written = client
        .update_item()
        .table_name(table)
        .key(keys::PK, AttributeValue::S(key.pk()))
        .key(keys::SK, AttributeValue::S(key.sk()))
        .condition_expression("attribute_exists(#tokens)")
        .update_expression("ADD #tokens :less, #consumed :more")
        .expression_attribute_names("#tokens", legacy_attribute(BucketField::Tokens))
        .expression_attribute_names("#consumed", legacy_attribute(BucketField::Consumed))
        .expression_attribute_values(":less", AttributeValue::N((-milli).to_string()))
        .expression_attribute_values(":more", AttributeValue::N(milli.to_string()))
        .send()
        .await;
    match written.map_err(aws_sdk_dynamodb::error::SdkError::into_service_error) {
        Ok(_) => true,
        Err(UpdateItemError::ConditionalCheckFailedException(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// The legacy items of a table.
///
/// # Panics
/// If one is broken.
pub async fn items(client: &Client, table: &str) -> Vec<(LegacyKey, LegacyLimit)> {
    let items = scan(client, table).await.into_iter();
    items
        .filter(|item| item.contains_key(keys::LAST_REFILL))
        .filter_map(|item| LegacyLimit::from_item(&item.into()).unwrap())
        .collect()
}
