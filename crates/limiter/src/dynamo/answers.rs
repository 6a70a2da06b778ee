//! Reads answers of DynamoDB: the cost, the item that a condition met, the image of a bucket.

use std::collections::HashMap;
use std::sync::Arc;

use aws_sdk_dynamodb::types::{
    AttributeValue, ConsumedCapacity, ReturnValuesOnConditionCheckFailure,
};
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{BucketId, CompositeBucket, Scalar};

use super::table_error::EmptyAnswer;
use crate::store_error::SetupError;
use crate::table::WriteError;

pub(super) const ALL_OLD: ReturnValuesOnConditionCheckFailure =
    ReturnValuesOnConditionCheckFailure::AllOld;

pub(super) fn key(bucket: &BucketId) -> ItemKey {
    ItemKey::Bucket(bucket.entity.clone(), bucket.resource.clone())
}

pub(super) fn text(item: &HashMap<String, AttributeValue>, attribute: &str) -> String {
    item.get(attribute).and_then(|value| value.as_s().ok()).cloned().unwrap_or_default()
}

/// The units of a call that asked for them. DynamoDB always names them, so an answer without them
/// was damaged on its way.
pub(super) fn spent(capacity: Option<ConsumedCapacity>) -> Result<f64, EmptyAnswer> {
    capacity.map(|capacity| units(Some(&capacity))).ok_or(EmptyAnswer)
}

/// As [`spent`], for a transaction. An engine may answer with an empty list, which is no damage.
pub(super) fn spent_on_all(capacity: Option<Vec<ConsumedCapacity>>) -> Result<f64, EmptyAnswer> {
    Ok(capacity.ok_or(EmptyAnswer)?.iter().map(|each| units(Some(each))).sum())
}

pub(super) fn units(capacity: Option<&ConsumedCapacity>) -> f64 {
    capacity.and_then(ConsumedCapacity::capacity_units).unwrap_or(0.0)
}

pub(super) fn condition_failed(
    bucket: &BucketId,
    item: Option<&HashMap<String, AttributeValue>>,
) -> WriteError {
    // Some engines return an empty item if there is none.
    let Some(item) = item.filter(|item| !item.is_empty()) else {
        return WriteError::ConditionFailed(None);
    };
    match parse_image(bucket, item) {
        Ok(image) => WriteError::ConditionFailed(image),
        Err(error) => WriteError::Table(error.into()),
    }
}

pub(super) fn parse_image(
    bucket: &BucketId,
    item: &HashMap<String, AttributeValue>,
) -> Result<Option<Arc<CompositeBucket>>, SetupError> {
    let attributes = item.iter().map(|(name, value)| {
        let value = match value {
            AttributeValue::S(text) => Scalar::Text(text),
            AttributeValue::N(digits) => Scalar::Number(digits),
            _ => Scalar::Other,
        };
        (name.as_str(), value)
    });
    CompositeBucket::from_attributes(attributes).map(|image| image.map(Arc::new)).map_err(
        |source| SetupError::BrokenItem { bucket: bucket.to_string(), source: source.into() },
    )
}
