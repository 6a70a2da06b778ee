//! Keeping what cannot be counted, so that nothing is ever given up silently.
//!
//! An entry is put only where none stands: an open one is not duplicated by a redelivery, and one
//! that was counted since (done) is not opened again. When a window cannot take records that are
//! fine in themselves, the entries and the window's watermark move in one transaction, so that a
//! later delivery cannot count what a replay of the quarantine will count.

use std::collections::HashMap;
use std::sync::OnceLock;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::{
    TransactWriteItemsError, TransactWriteItemsOutput,
};
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, Put, ReturnConsumedCapacity,
    ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update,
};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use sluicegate_core::keys::{self, ItemKey, QuarantineId};
use sluicegate_core::{
    EntityId, OddRecord, RecordDeltas, Resource, SequenceNumber, StreamLabel, StreamRecord,
    WindowFold, extract_deltas,
};
use tokio::time::Instant;

use crate::expressions::{self, text};
use crate::settings::Settings;
use crate::store::{Backoff, Refusal, one_line};
use crate::usage::{self, Attempt, Window};

/// A DynamoDB item holds 400 KB; a record carries two images of one and is kept whole below this.
const RECORD_BYTES_MAX: usize = 350_000;
/// An error may quote what it found, which may be anything.
const REASON_CHARS_MAX: usize = 1_000;
/// A transaction takes 100 items; one is the window.
const ENTRIES_PER_TRANSACTION: usize = 99;
/// A transaction takes 4 MB, keys and names included.
const BYTES_PER_TRANSACTION: usize = 3_500_000;

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
    pub(crate) fn of_record(odd: &OddRecord<'_>) -> Self {
        let (stream, sequence) = StreamRecord::position_of(odd.json);
        let record = StreamRecord::from_json(odd.json);
        let digest = match record.as_ref().ok().and_then(StreamRecord::identity) {
            Some((_, pk, sk, _)) => digest_of_item(pk, sk),
            None => digest(odd.json.as_bytes()),
        };
        let id = QuarantineId { stream, sequence, digest, window: None };
        Self::new(id, odd.json, &odd.reason)
    }

    /// An entry for a record that one window cannot take.
    pub(crate) fn of_window(
        fold: &WindowFold,
        record: &RecordDeltas,
        texts: &Texts<'_>,
        reason: &str,
    ) -> Self {
        let item = ItemKey::Bucket(record.entity.clone(), record.resource.clone());
        let id = QuarantineId {
            stream: record.stream.clone(),
            sequence: Some(record.sequence),
            digest: digest_of_item(&item.pk(), &item.sk()),
            window: Some(fold.window().kind()),
        };
        Self::new(id, texts.of(record), reason)
    }

    fn new(id: QuarantineId, json: &str, reason: &str) -> Self {
        let truncated = json.len() > RECORD_BYTES_MAX;
        let record = if truncated { without_images(json) } else { json.to_owned() };
        let reason = one_line(reason, REASON_CHARS_MAX);
        Self { key: ItemKey::Quarantine(id), reason, record, truncated }
    }

    /// The position of the record, if it has one.
    pub(crate) fn sequence(&self) -> Option<SequenceNumber> {
        match &self.key {
            ItemKey::Quarantine(id) => id.sequence,
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

/// Tells records of one position apart.
fn digest_of_item(pk: &str, sk: &str) -> String {
    digest(format!("{pk}\0{sk}").as_bytes())
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// What is left of a record that is larger than an item: all but the images.
fn without_images(json: &str) -> String {
    let first_part = |text: &str| text.chars().take(RECORD_BYTES_MAX / 4).collect();
    let Ok(mut record) = serde_json::from_str::<Value>(json) else {
        return first_part(json);
    };
    if let Some(change) = record.get_mut("dynamodb").and_then(Value::as_object_mut) {
        change.remove("NewImage");
        change.remove("OldImage");
    }
    let short = record.to_string();
    if short.len() <= RECORD_BYTES_MAX { short } else { first_part(&short) }
}

/// The text of each record of a batch, looked up only when a window refuses some of them.
pub(crate) struct Texts<'a> {
    records: &'a [Box<RawValue>],
    index: OnceLock<HashMap<TextKey, &'a str>>,
}

type TextKey = (StreamLabel, SequenceNumber, EntityId, Resource);

impl<'a> Texts<'a> {
    pub(crate) const fn new(records: &'a [Box<RawValue>]) -> Self {
        Self { records, index: OnceLock::new() }
    }

    fn of(&self, record: &RecordDeltas) -> &'a str {
        let index = self.index.get_or_init(|| {
            let read = |json: &'a str| {
                let record = extract_deltas(&StreamRecord::from_json(json).ok()?).ok()??;
                Some((text_key(&record), json))
            };
            self.records.iter().filter_map(|raw| read(raw.get())).collect()
        });
        index.get(&text_key(record)).copied().unwrap_or_default()
    }
}

fn text_key(record: &RecordDeltas) -> TextKey {
    (record.stream.clone(), record.sequence, record.entity.clone(), record.resource.clone())
}

/// Puts an entry unless one stands there; tells whether it is new, and the write units.
pub(crate) async fn put(
    client: &Client,
    settings: &Settings,
    entry: &Entry,
    deadline: Instant,
) -> Result<(bool, f64), Refusal> {
    let mut backoff = Backoff::until(deadline);
    let mut repeated = false;
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
                // After a lost reply it may be our own: better told twice than not at all.
                Some(PutItemError::ConditionalCheckFailedException(_)) => {
                    return Ok((repeated, 1.0));
                }
                _ => Refusal::of(&error),
            },
        };
        if !matches!(refusal, Refusal::Transient(_)) || !backoff.pause().await {
            return Err(refusal);
        }
        repeated = true;
    }
}

/// The first entries that one transaction holds.
pub(crate) fn first_that_fit(entries: impl Iterator<Item = Entry>) -> Vec<Entry> {
    let mut bytes = 0;
    entries
        .take(ENTRIES_PER_TRANSACTION)
        .take_while(|entry| {
            bytes += entry.record.len() + entry.reason.len() + 1_000;
            bytes <= BYTES_PER_TRANSACTION
        })
        .collect()
}

/// Keeps entries and moves the watermark of their window past them, both or neither.
pub(crate) async fn pass_over(
    window: Window<'_>,
    built: expressions::Update,
    mut entries: Vec<Entry>,
) -> Attempt {
    loop {
        let items = match transaction(window, &built, &entries) {
            Ok(items) => items,
            Err(refusal) => return Attempt::Refused(refusal),
        };
        let request = window
            .client
            .transact_write_items()
            .set_transact_items(Some(items))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let error = match tokio::time::timeout_at(window.deadline, request.send()).await {
            Err(_) => return Attempt::Refused(Refusal::out_of_time()),
            Ok(Ok(output)) => return Attempt::Done(units_of(&output)),
            Ok(Err(error)) => error,
        };
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        else {
            return Attempt::Refused(Refusal::of(&error).repairable());
        };
        let reasons = cancelled.cancellation_reasons();
        // The window's own reason comes last.
        if let Some(reason) = reasons.get(entries.len()).filter(|reason| is_refused(reason)) {
            return usage::behind(reason.item(), window.fold);
        }
        let standing = entries.len();
        let mut refused = reasons.iter().map(is_refused);
        entries.retain(|_| !refused.next().unwrap_or(false));
        if entries.len() == standing {
            let reason = reasons.iter().find(|reason| reason.code() != Some("None"));
            let code = reason.and_then(CancellationReason::code).unwrap_or("TransactionCanceled");
            let message = reason.and_then(CancellationReason::message).unwrap_or_default();
            let refusal = Refusal::of_code(code, format!("{code}: {}", one_line(message, 400)));
            return Attempt::Refused(refusal.repairable());
        }
    }
}

fn is_refused(reason: &CancellationReason) -> bool {
    reason.code() == Some("ConditionalCheckFailed")
}

fn transaction(
    window: Window<'_>,
    built: &expressions::Update,
    entries: &[Entry],
) -> Result<Vec<TransactWriteItem>, Refusal> {
    let (condition, names) = expressions::absent();
    let mut items = Vec::with_capacity(entries.len() + 1);
    for entry in entries {
        let put = Put::builder()
            .table_name(&window.settings.table)
            .set_item(Some(entry.item()))
            .condition_expression(&condition)
            .set_expression_attribute_names(Some(names.clone()))
            .build()
            .map_err(|error| Refusal::Setup(error.to_string()))?;
        items.push(TransactWriteItem::builder().put(put).build());
    }
    let update = Update::builder()
        .table_name(&window.settings.table)
        .set_key(Some(expressions::key(&window.fold.key())))
        .update_expression(&built.expression)
        .condition_expression(&built.condition)
        .set_expression_attribute_names(Some(built.names.clone()))
        .set_expression_attribute_values(Some(built.values.clone()))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .build()
        .map_err(|error| Refusal::Setup(error.to_string()))?;
    items.push(TransactWriteItem::builder().update(update).build());
    Ok(items)
}

fn units_of(output: &TransactWriteItemsOutput) -> f64 {
    output.consumed_capacity().iter().filter_map(|capacity| capacity.capacity_units()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(json: &str) -> Entry {
        Entry::of_record(&OddRecord { json, reason: "odd".to_owned() })
    }

    #[test]
    fn a_record_without_a_position_is_known_by_its_content() {
        let odd = entry("{\"odd\":1}");
        assert_eq!(odd.sequence(), None);
        assert!(odd.key.sk().starts_with("-#-#"), "{}", odd.key.sk());
        assert_eq!(odd.key, entry("{\"odd\":1}").key);
        assert_ne!(odd.key, entry("{\"odd\":2}").key);
    }

    #[test]
    fn records_of_two_items_with_one_position_are_two_entries() {
        let of = |entity: &str| {
            entry(&format!(
                r##"{{"eventName":"MODIFY","dynamodb":{{"SequenceNumber":"7","Keys":
                {{"PK":{{"S":"ENTITY#{entity}"}},"SK":{{"S":"#BUCKET#r"}}}}}}}}"##
            ))
        };
        assert_eq!(of("a").key, of("a").key);
        assert_ne!(of("a").key, of("b").key);
        assert_eq!(of("a").sequence(), of("b").sequence());
    }

    #[test]
    fn a_record_larger_than_an_item_keeps_all_but_its_images() {
        let huge = "x".repeat(RECORD_BYTES_MAX);
        let json = format!(
            "{{\"dynamodb\":{{\"SequenceNumber\":\"7\",\"NewImage\":{{\"a\":{{\"S\":\"{huge}\"}}}}}}}}"
        );
        let item = entry(&json).item();
        assert_eq!(item["record"], text("{\"dynamodb\":{\"SequenceNumber\":\"7\"}}"));
        assert_eq!(item["truncated"], AttributeValue::Bool(true));
        assert_eq!(item["state"], text("open"));
    }

    #[test]
    fn a_transaction_is_bounded_in_items_and_bytes() {
        let small = (0..150).map(|n| entry(&n.to_string()));
        assert_eq!(first_that_fit(small).len(), ENTRIES_PER_TRANSACTION);
        let large = format!("[\"{}\"]", "x".repeat(340_000));
        let fitting = first_that_fit((0..99).map(|_| entry(&large)));
        assert!((9..=10).contains(&fitting.len()), "{}", fitting.len());
        let reason = "x".repeat(500_000);
        let long = Entry::of_record(&OddRecord { json: "{}", reason });
        assert_eq!(long.reason.len(), REASON_CHARS_MAX);
    }
}
