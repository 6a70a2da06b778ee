//! A quarantine entry that is not stored yet: a record, cut to the size of an item.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use sluicegate_core::keys::{self, Digest, ItemKey, QuarantineId};
use sluicegate_core::{
    RecordDeltas, SequenceNumber, StreamLabel, StreamRecord, UncountableRecord, WindowGroup,
};

use crate::expressions::{self, text};
use crate::write_error::one_line;

/// A record of up to this size is kept whole. A DynamoDB item holds 400 KB, and a record may be
/// larger, because it carries two images of an item.
const RECORD_BYTES_MAX: usize = 350_000;
/// An error may quote its input, so a reason is cut to this many characters.
const REASON_CHARS_MAX: usize = 1_000;
/// A transaction takes 100 items; one is the window.
const ENTRIES_PER_TRANSACTION: usize = 99;
/// A transaction takes 4 MB, keys and names included.
const BYTES_PER_TRANSACTION: usize = 3_500_000;

/// A quarantine entry that is not stored yet.
#[derive(Debug, Clone)]
pub(crate) struct NewQuarantineEntry {
    pub(crate) key: ItemKey,
    pub(crate) reason: String,
    record: String,
    truncated: bool,
}

impl NewQuarantineEntry {
    /// An entry for a record that cannot be counted at all.
    pub(crate) fn of_record(uncountable: &UncountableRecord<'_>) -> Self {
        let (stream, sequence) = StreamRecord::stream_and_sequence_of(uncountable.json);
        // If the entry's key has the stream and the position, a digest of the bucket's key is
        // enough. Otherwise the digest is of the whole record.
        let digest = match StreamRecord::from_json(uncountable.json) {
            Ok(record) if sequence.is_some() && record.stream().is_ok() => {
                digest_of_item(record.keys())
            }
            _ => digest(uncountable.json.as_bytes()),
        };
        let id = QuarantineId { stream, sequence, digest, kind: None };
        Self::new(id, uncountable.json, &uncountable.reason)
    }

    /// An entry for a record that one window cannot accept.
    pub(crate) fn refused_by_window(
        group: &WindowGroup<'_>,
        record: &RecordDeltas<'_>,
        reason: &str,
    ) -> Self {
        let (pk, sk) = record.item_keys();
        let id = QuarantineId {
            stream: record.stream.clone(),
            sequence: Some(record.sequence),
            digest: digest_of_item((&pk, &sk)),
            kind: Some(group.window().kind()),
        };
        Self::new(id, record.json, reason)
    }

    fn new(id: QuarantineId, json: &str, reason: &str) -> Self {
        let truncated = json.len() > RECORD_BYTES_MAX;
        let record = if truncated { cut_down(json) } else { json.to_owned() };
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

    /// True if this entry's record may come before `other` in the same stream, or has the same
    /// position. If the entry has no readable stream, its record may be of any stream. If it has no
    /// readable position, its record may come before any other.
    pub(crate) fn may_precede(&self, other: &RecordDeltas<'_>) -> bool {
        let ItemKey::Quarantine(id) = &self.key else { return true };
        let is_of_other_stream = id.stream != other.stream && id.stream != StreamLabel::default();
        !is_of_other_stream && id.sequence.is_none_or(|sequence| sequence <= other.sequence)
    }

    pub(crate) fn item(&self) -> HashMap<String, AttributeValue> {
        let mut item = expressions::key(&self.key);
        item.insert(keys::RECORD.to_owned(), text(&self.record));
        item.insert(keys::REASON.to_owned(), text(&self.reason));
        // No ttl: an open entry waits for a person, however long.
        item.insert(keys::STATE.to_owned(), text(keys::OPEN));
        if self.truncated {
            item.insert(keys::TRUNCATED.to_owned(), AttributeValue::Bool(true));
        }
        item
    }
}

/// The first entries that fit in one transaction: at least one, if there are any.
pub(crate) fn first_that_fit(
    entries: impl Iterator<Item = NewQuarantineEntry>,
) -> Vec<NewQuarantineEntry> {
    let mut bytes = 0;
    entries
        .take(ENTRIES_PER_TRANSACTION)
        .take_while(|entry| {
            bytes += entry.record.len() + entry.reason.len() + 1_000;
            bytes <= BYTES_PER_TRANSACTION
        })
        .collect()
}

/// A digest of an item's key: it tells records of several items with the same position apart.
fn digest_of_item((pk, sk): (&str, &str)) -> Digest {
    digest(format!("{pk}\0{sk}").as_bytes())
}

fn digest(bytes: &[u8]) -> Digest {
    let first =
        Sha256::digest(bytes).iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Digest(first)
}

/// Cuts a record that is too large for an item. Its images keep the attributes that metering reads.
/// They also keep the partition key, because metering takes an image without attributes for a
/// missing one.
fn cut_down(json: &str) -> String {
    let beginning = |text: &str| text.chars().take(RECORD_BYTES_MAX / 4).collect();
    let Ok(mut record) = serde_json::from_str::<Value>(json) else {
        return beginning(json);
    };
    for image in ["OldImage", "NewImage"] {
        // Not by `[]`, which panics on a record that is no object.
        let image = record.get_mut("dynamodb").and_then(|change| change.get_mut(image));
        if let Some(image) = image.and_then(Value::as_object_mut) {
            image.retain(|attribute, _| keys::is_metered(attribute) || attribute == keys::PK);
        }
    }
    let short = record.to_string();
    if short.len() <= RECORD_BYTES_MAX { short } else { beginning(&short) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::extract_deltas;

    fn entry(json: &str) -> NewQuarantineEntry {
        NewQuarantineEntry::of_record(&UncountableRecord { json, reason: "malformed".to_owned() })
    }

    #[test]
    fn a_record_without_a_position_is_known_by_its_content() {
        let malformed = entry("{\"odd\":1}");
        assert_eq!(malformed.sequence(), None);
        assert!(malformed.key.sk().starts_with("-#-#"), "{}", malformed.key.sk());
        assert_eq!(malformed.key, entry("{\"odd\":1}").key);
        assert_ne!(malformed.key, entry("{\"odd\":2}").key);
    }

    /// Only its content tells such a record from another one of the same item.
    #[test]
    fn records_of_one_item_that_no_position_tells_apart_are_two_entries() {
        let of = |arn: &str, sequence: &str, rf: u32| {
            entry(&format!(
                r##"{{"eventName":"INSERT",{arn}"dynamodb":{{{sequence}"Keys":
                {{"PK":{{"S":"ENTITY#u"}},"SK":{{"S":"#BUCKET#r"}}}},"NewImage":
                {{"rf":{{"N":"{rf}"}},"b_rpm_tc":{{"N":"1"}}}}}}}}"##
            ))
        };
        let unplaced = |rf| of("", "", rf);
        assert_eq!(unplaced(1).key, unplaced(1).key);
        assert_ne!(unplaced(1).key, unplaced(2).key);
        let (position, arn) = (r#""SequenceNumber":"7","#, r#""eventSourceARN":"x","#);
        assert_ne!(of(arn, position, 1).key, of("", position, 1).key, "not of the same stream");
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
    fn a_record_larger_than_an_item_keeps_what_metering_reads() {
        let huge = "x".repeat(RECORD_BYTES_MAX);
        let json = format!(
            r##"{{"eventName":"INSERT","dynamodb":{{"SequenceNumber":"7","Keys":
            {{"PK":{{"S":"ENTITY#u"}},"SK":{{"S":"#BUCKET#r"}}}},"NewImage":
            {{"rf":{{"N":"5"}},"b_rpm_tc":{{"N":"1000"}},"padding":{{"S":"{huge}"}}}}}}}}"##
        );
        let item = entry(&json).item();
        assert_eq!(item["truncated"], AttributeValue::Bool(true));
        assert_eq!(item["state"], text("open"));
        let kept = StreamRecord::from_json(item["record"].as_s().unwrap()).unwrap();
        let deltas = extract_deltas(&kept).unwrap().unwrap();
        assert_eq!(deltas.deltas[0].consumed_milli, 1_000, "a recount can count it");
    }

    #[test]
    fn an_image_that_metering_reads_nothing_of_is_still_there() {
        let huge = "x".repeat(RECORD_BYTES_MAX);
        let json = format!(
            r##"{{"eventName":"MODIFY","dynamodb":{{"SequenceNumber":"7","Keys":
            {{"PK":{{"S":"ENTITY#u"}},"SK":{{"S":"#BUCKET#r"}}}},"OldImage":
            {{"PK":{{"S":"ENTITY#u"}},"SK":{{"S":"#BUCKET#r"}},"padding":{{"S":"{huge}"}}}},
            "NewImage":{{"rf":{{"N":"5"}},"b_rpm_tc":{{"N":"1000"}}}}}}}}"##
        );
        let item = entry(&json).item();
        let kept = StreamRecord::from_json(item["record"].as_s().unwrap()).unwrap();
        assert!(extract_deltas(&kept).unwrap().is_some(), "not taken for the wrong view type");
    }

    #[test]
    fn a_large_record_may_be_anything() {
        let huge = "x".repeat(RECORD_BYTES_MAX);
        for json in [format!("[\"{huge}\"]"), format!("\"{huge}\""), format!("{huge}?")] {
            let item = entry(&json).item();
            assert!(item["record"].as_s().unwrap().len() <= RECORD_BYTES_MAX);
            assert_eq!(item["truncated"], AttributeValue::Bool(true));
        }
    }

    #[test]
    fn a_transaction_is_bounded_in_items_and_bytes() {
        let small = (0..150).map(|n| entry(&n.to_string()));
        assert_eq!(first_that_fit(small).len(), ENTRIES_PER_TRANSACTION);
        let large = format!("[\"{}\"]", "x".repeat(340_000));
        let fitting = first_that_fit((0..99).map(|_| entry(&large)));
        assert!((9..=10).contains(&fitting.len()), "{}", fitting.len());
        let reason = "x".repeat(500_000);
        let long = NewQuarantineEntry::of_record(&UncountableRecord { json: "{}", reason });
        assert_eq!(long.reason.len(), REASON_CHARS_MAX);
    }
}
