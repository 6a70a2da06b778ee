//! Keeping what cannot be counted, so that nothing is ever given up silently.
//!
//! An entry is put only where none stands: an open one is not duplicated by a redelivery, and one
//! that was counted since (done) is not opened again. When a window cannot take records that are
//! fine in themselves, the entries and the window's watermark move in one transaction, so that a
//! later delivery cannot count what a replay of the quarantine will count.

use std::collections::HashMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::{
    TransactWriteItemsError, TransactWriteItemsOutput,
};
use aws_sdk_dynamodb::types::{
    AttributeValue, Put, ReturnConsumedCapacity, TransactWriteItem, Update,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use sluicegate_core::keys::{self, ItemKey, QuarantineId};
use sluicegate_core::{OddRecord, SequenceNumber, StreamLabel, StreamRecord};
use tokio::time::Instant;

use crate::expressions::{self, text};
use crate::settings::Settings;
use crate::store::{Backoff, Refusal};

/// A DynamoDB item holds 400 KB; a record carries two images of one and is kept whole below this.
const RECORD_BYTES_MAX: usize = 350_000;
/// A transaction takes 100 items; one is the window.
pub(crate) const ENTRIES_PER_TRANSACTION: usize = 99;

/// A record on its way to quarantine.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: ItemKey,
    pub(crate) reason: String,
    record: String,
    truncated: bool,
}

impl Entry {
    /// An entry for a record that cannot be counted at all.
    pub(crate) fn of_record(odd: OddRecord<'_>) -> Self {
        let OddRecord { json, reason } = odd;
        let id = match StreamRecord::position_of(json) {
            Some((stream, sequence)) => QuarantineId::Record(stream, sequence),
            None => {
                let digest =
                    Sha256::digest(json).iter().map(|byte| format!("{byte:02x}")).collect();
                QuarantineId::Content(StreamLabel::from_arn(None), digest)
            }
        };
        Self::new(id, json, reason)
    }

    pub(crate) fn new(id: QuarantineId, json: &str, reason: String) -> Self {
        let truncated = json.len() > RECORD_BYTES_MAX;
        let record = if truncated { without_images(json) } else { json.to_owned() };
        Self { key: ItemKey::Quarantine(id), reason, record, truncated }
    }

    /// The position of the record, if it has one.
    pub(crate) fn sequence(&self) -> Option<SequenceNumber> {
        match &self.key {
            ItemKey::Quarantine(
                QuarantineId::Record(_, sequence) | QuarantineId::Window(_, sequence, _),
            ) => Some(*sequence),
            _ => None,
        }
    }

    fn item(&self) -> HashMap<String, AttributeValue> {
        let mut item = expressions::key(&self.key);
        item.insert(keys::RECORD.to_owned(), text(&self.record));
        item.insert(keys::REASON.to_owned(), text(&self.reason));
        // No ttl: an open entry waits for a person, however long.
        item.insert(keys::STATE.to_owned(), text("open"));
        if self.truncated {
            item.insert(keys::TRUNCATED.to_owned(), AttributeValue::Bool(true));
        }
        item
    }
}

/// What is left of a record that is larger than an item: all but the images.
fn without_images(json: &str) -> String {
    let Ok(mut record) = serde_json::from_str::<Value>(json) else {
        return json.chars().take(RECORD_BYTES_MAX / 4).collect();
    };
    if let Some(change) = record.get_mut("dynamodb").and_then(Value::as_object_mut) {
        change.remove("NewImage");
        change.remove("OldImage");
    }
    let short = record.to_string();
    if short.len() <= RECORD_BYTES_MAX {
        short
    } else {
        short.chars().take(RECORD_BYTES_MAX / 4).collect()
    }
}

/// Puts an entry unless one stands there; tells whether it is new, and the write units.
pub(crate) async fn put(
    client: &Client,
    settings: &Settings,
    entry: &Entry,
    deadline: Instant,
) -> Result<(bool, f64), Refusal> {
    let mut backoff = Backoff::until(deadline);
    loop {
        let (condition, names) = expressions::absent();
        let request = client
            .put_item()
            .table_name(&settings.table)
            .set_item(Some(entry.item()))
            .condition_expression(condition)
            .set_expression_attribute_names(Some(names))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let refusal = match tokio::time::timeout_at(deadline, request.send()).await {
            Err(_) => return Err(Refusal::out_of_time()),
            Ok(Ok(output)) => {
                let units = output.consumed_capacity.and_then(|capacity| capacity.capacity_units);
                return Ok((true, units.unwrap_or(0.0)));
            }
            Ok(Err(error)) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(_)) => return Ok((false, 1.0)),
                _ => Refusal::of(&error),
            },
        };
        if !matches!(refusal, Refusal::Transient(_)) || !backoff.pause().await {
            return Err(refusal);
        }
    }
}

/// How a transaction of entries and watermark ended.
#[derive(Debug)]
pub(crate) enum Passed {
    /// The entries stand (those in the list are new) and the watermark is past them.
    Done { new: Vec<ItemKey>, write_units: f64 },
    /// The watermark had moved meanwhile: read it again.
    Raced,
}

/// Keeps `entries` (at most [`ENTRIES_PER_TRANSACTION`]), whose records lie between `first` and
/// `last`, and moves the watermark of `window` past them.
pub(crate) async fn pass_over(
    client: &Client,
    settings: &Settings,
    window: &ItemKey,
    (stream, first, last): (&StreamLabel, &SequenceNumber, &SequenceNumber),
    mut entries: Vec<Entry>,
    deadline: Instant,
) -> Result<Passed, Refusal> {
    let mut backoff = Backoff::until(deadline);
    loop {
        let built = expressions::pass_over(stream, first, last);
        let mut items =
            entries.iter().map(|entry| put_of(settings, entry)).collect::<Result<Vec<_>, _>>()?;
        let update = Update::builder()
            .table_name(&settings.table)
            .set_key(Some(expressions::key(window)))
            .update_expression(built.expression)
            .condition_expression(built.condition)
            .set_expression_attribute_names(Some(built.names))
            .set_expression_attribute_values(Some(built.values))
            .build()
            .map_err(|error| Refusal::Invalid(error.to_string()))?;
        items.push(TransactWriteItem::builder().update(update).build());
        let request = client
            .transact_write_items()
            .set_transact_items(Some(items))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let refusal = match tokio::time::timeout_at(deadline, request.send()).await {
            Err(_) => return Err(Refusal::out_of_time()),
            Ok(Ok(output)) => {
                let new = entries.into_iter().map(|entry| entry.key).collect();
                return Ok(Passed::Done { new, write_units: units_of(&output) });
            }
            Ok(Err(error)) => match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    let failed: Vec<bool> = cancelled
                        .cancellation_reasons()
                        .iter()
                        .map(|reason| reason.code() == Some("ConditionalCheckFailed"))
                        .collect();
                    if failed.get(entries.len()) == Some(&true) {
                        return Ok(Passed::Raced);
                    }
                    let before = entries.len();
                    let mut standing = failed.into_iter();
                    entries.retain(|_| !standing.next().unwrap_or(false));
                    if entries.len() < before {
                        continue;
                    }
                    Refusal::Transient(format!("transaction cancelled: {cancelled}"))
                }
                _ => Refusal::of(&error),
            },
        };
        if !matches!(refusal, Refusal::Transient(_)) || !backoff.pause().await {
            return Err(refusal);
        }
    }
}

fn put_of(settings: &Settings, entry: &Entry) -> Result<TransactWriteItem, Refusal> {
    let (condition, names) = expressions::absent();
    let put = Put::builder()
        .table_name(&settings.table)
        .set_item(Some(entry.item()))
        .condition_expression(condition)
        .set_expression_attribute_names(Some(names))
        .build()
        .map_err(|error| Refusal::Invalid(error.to_string()))?;
    Ok(TransactWriteItem::builder().put(put).build())
}

fn units_of(output: &TransactWriteItemsOutput) -> f64 {
    output.consumed_capacity().iter().filter_map(|capacity| capacity.capacity_units()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn odd<'a>(json: &'a str, reason: &str) -> OddRecord<'a> {
        OddRecord { json, reason: reason.to_owned() }
    }

    #[test]
    fn a_record_without_a_position_is_known_by_its_content() {
        let entry = Entry::of_record(odd("{\"odd\":1}", "odd"));
        assert_eq!(entry.sequence(), None);
        assert!(entry.key.sk().starts_with("-#content#"), "{}", entry.key.sk());
        assert_eq!(entry.key, Entry::of_record(odd("{\"odd\":1}", "again")).key);
        assert_ne!(entry.key, Entry::of_record(odd("{\"odd\":2}", "odd")).key);
    }

    #[test]
    fn a_record_larger_than_an_item_keeps_all_but_its_images() {
        let huge = "x".repeat(RECORD_BYTES_MAX);
        let json = format!(
            "{{\"dynamodb\":{{\"SequenceNumber\":\"7\",\"NewImage\":{{\"a\":{{\"S\":\"{huge}\"}}}}}}}}"
        );
        let item = Entry::of_record(odd(&json, "why")).item();
        assert_eq!(item["record"], text("{\"dynamodb\":{\"SequenceNumber\":\"7\"}}"));
        assert_eq!(item["truncated"], AttributeValue::Bool(true));
        assert_eq!(item["state"], text("open"));
    }
}
