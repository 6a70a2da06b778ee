//! One record of the table's stream, borrowed from the JSON that Lambda hands over.
//!
//! Only what metering needs is kept: the keys, the stream, the position, the time and, of both
//! images, the counters, the refill timestamp and whether the item was converted from the older
//! layout. The parser skips everything else without building a tree. It does not check names and
//! numbers: a record of an item that is no bucket may contain anything.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_dynamo::{AttributeValue, Item};
use serde_json::value::RawValue;

use crate::{BadStreamArn, EpochMillis, SequenceNumber, StreamLabel, keys};

/// The kind of change of the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventName {
    /// The item is new.
    Insert,
    /// The item was there before.
    Modify,
    /// The item is gone, by a delete or by TTL.
    Remove,
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Insert => "INSERT",
            Self::Modify => "MODIFY",
            Self::Remove => "REMOVE",
        })
    }
}

/// One stream record, as far as metering reads it.
///
/// ```
/// use sluicegate_core::{StreamRecord, extract_deltas};
///
/// let json = r##"{"eventName": "INSERT", "dynamodb": {
///     "ApproximateCreationDateTime": 1706000001,
///     "Keys": {"PK": {"S": "ENTITY#user-123"}, "SK": {"S": "#BUCKET#gpt-4"}},
///     "NewImage": {"rf": {"N": "1706000000000"}, "b_rpm_tc": {"N": "1000"}},
///     "SequenceNumber": "100000000003498069978"}}"##;
/// let deltas = extract_deltas(&StreamRecord::from_json(json)?)?.expect("something was consumed");
/// assert_eq!(deltas.deltas[0].consumed_milli, 1_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Deserialize)]
pub struct StreamRecord<'a> {
    /// The record as it was delivered.
    #[serde(skip)]
    pub(crate) json: &'a str,
    #[serde(rename = "eventName")]
    pub(crate) event_name: EventName,
    #[serde(borrow, rename = "eventSourceARN", default)]
    pub(crate) arn: Option<Text<'a>>,
    #[serde(borrow, rename = "dynamodb")]
    pub(crate) change: RecordChange<'a>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RecordChange<'a> {
    /// Epoch seconds.
    #[serde(rename = "ApproximateCreationDateTime", default)]
    pub(crate) created_s: Option<f64>,
    #[serde(borrow, rename = "Keys")]
    pub(crate) keys: Keys<'a>,
    #[serde(borrow, rename = "NewImage", default)]
    pub(crate) new: Option<Image<'a>>,
    #[serde(borrow, rename = "OldImage", default)]
    pub(crate) old: Option<Image<'a>>,
    #[serde(borrow, rename = "SequenceNumber", default)]
    pub(crate) sequence: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Keys<'a> {
    #[serde(borrow, rename = "PK")]
    pub(crate) pk: KeyValue<'a>,
    #[serde(borrow, rename = "SK")]
    pub(crate) sk: KeyValue<'a>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct KeyValue<'a> {
    #[serde(borrow, rename = "S")]
    pub(crate) text: Text<'a>,
}

/// The parts of a record that name its stream and position. The rest may be malformed.
#[derive(Default, Deserialize)]
struct PositionParts<'a> {
    #[serde(borrow, rename = "eventSourceARN")]
    arn: Option<&'a RawValue>,
    #[serde(borrow, rename = "dynamodb")]
    change: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct SequenceOnly<'a> {
    #[serde(borrow, rename = "SequenceNumber")]
    sequence: Option<&'a RawValue>,
}

/// Decodes a value if it is of the expected type.
fn lenient<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

impl<'a> StreamRecord<'a> {
    /// Reads one record of a Lambda event.
    ///
    /// # Errors
    /// The JSON error, with its line and column, when the text is not a DynamoDB stream record.
    pub fn from_json(json: &'a str) -> Result<Self, serde_json::Error> {
        Ok(Self { json, ..serde_json::from_str(json)? })
    }

    /// The stream of a record and its position. An unreadable stream is `-`, and an unreadable
    /// position is `None`. The rest of the record may be malformed.
    #[must_use]
    pub fn stream_and_sequence_of(json: &str) -> (StreamLabel, Option<SequenceNumber>) {
        let record: PositionParts<'_> = serde_json::from_str(json).unwrap_or_default();
        let stream = StreamLabel::from_arn(lenient::<String>(record.arn).as_deref());
        let stream = stream.unwrap_or_default();
        let change: SequenceOnly<'_> = lenient(record.change).unwrap_or_default();
        let digits: Option<String> = lenient(change.sequence);
        let sequence = digits.and_then(|digits| SequenceNumber::parse(&digits).ok());
        (stream, sequence)
    }

    /// The creation time of the record, if the record has one between 1970 and 9999.
    #[must_use]
    pub fn created(&self) -> Option<EpochMillis> {
        let millis = (self.change.created_s? * 1_000.0).round();
        if !(0.0..=1e15).contains(&millis) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked to be far inside an i64")]
        EpochMillis::new(millis as i64).ok()
    }

    /// Partition key and sort key of the item.
    #[must_use]
    pub fn keys(&self) -> (&str, &str) {
        (&self.change.keys.pk.text.0, &self.change.keys.sk.text.0)
    }

    /// The stream that delivered the record.
    ///
    /// # Errors
    /// [`BadStreamArn`] when there is an ARN but no label in it.
    pub fn stream(&self) -> Result<StreamLabel, BadStreamArn> {
        StreamLabel::from_arn(self.arn.as_ref().map(|arn| arn.0.as_ref()))
    }

    /// The record's position in its stream, if it has a readable one.
    #[must_use]
    pub fn sequence(&self) -> Option<SequenceNumber> {
        SequenceNumber::parse(&self.change.sequence.as_ref()?.0).ok()
    }
}

/// The counters and the refill timestamp of one image of an item.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Image<'a> {
    /// The number of attributes of any kind. An image without attributes counts as missing, because
    /// every item has its keys.
    pub(crate) attribute_count: usize,
    pub(crate) refilled_at: Option<ImageValue<'a>>,
    pub(crate) was_converted: bool,
    /// Limit and value of each `tc` attribute, sorted by limit.
    pub(crate) counters: Vec<(Text<'a>, ImageValue<'a>)>,
}

impl<'a> Image<'a> {
    /// The image of an item that was decoded already.
    #[must_use]
    pub fn from_item(item: &'a Item) -> Self {
        let mut image = Self::default();
        for (name, value) in item.inner() {
            image.attribute_count += 1;
            match ImageAttribute::classify(name) {
                ImageAttribute::Counter => {
                    let limit = Text(Cow::Borrowed(limit_of(name)));
                    image.counters.push((limit, ImageValue::of(value)));
                }
                ImageAttribute::RefilledAt => image.refilled_at = Some(ImageValue::of(value)),
                ImageAttribute::Migrated => image.was_converted = true,
                ImageAttribute::Other => {}
            }
        }
        image.counters.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        image
    }
}

/// Text of the JSON, borrowed unless it has escapes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// An attribute value: a number's digits, or anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImageValue<'a> {
    Number(Text<'a>),
    Other,
}

impl<'a> ImageValue<'a> {
    fn of(value: &'a AttributeValue) -> Self {
        match value {
            AttributeValue::N(digits) => Self::Number(Text(Cow::Borrowed(digits))),
            _ => Self::Other,
        }
    }
}

enum ImageAttribute {
    Counter,
    RefilledAt,
    Migrated,
    Other,
}

impl ImageAttribute {
    fn classify(name: &str) -> Self {
        match name {
            keys::REFILLED_AT => Self::RefilledAt,
            keys::MIGRATED => Self::Migrated,
            _ if keys::parse_counter_attribute(name).is_some() => Self::Counter,
            _ => Self::Other,
        }
    }
}

fn limit_of(attribute: &str) -> &str {
    keys::parse_counter_attribute(attribute).unwrap_or_default()
}

impl<'de: 'a, 'a> Deserialize<'de> for Image<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ImageVisitor;
        impl<'de> Visitor<'de> for ImageVisitor {
            type Value = Image<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an image of an item")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Image<'de>, A::Error> {
                let mut image = Image::default();
                while let Some(Text(name)) = map.next_key()? {
                    image.attribute_count += 1;
                    match ImageAttribute::classify(&name) {
                        ImageAttribute::Counter => {
                            let limit = match name {
                                Cow::Borrowed(name) => Cow::Borrowed(limit_of(name)),
                                Cow::Owned(name) => Cow::Owned(limit_of(&name).to_owned()),
                            };
                            image.counters.push((Text(limit), map.next_value()?));
                        }
                        ImageAttribute::RefilledAt => image.refilled_at = Some(map.next_value()?),
                        ImageAttribute::Migrated => {
                            image.was_converted = true;
                            map.next_value::<IgnoredAny>()?;
                        }
                        ImageAttribute::Other => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                image.counters.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                Ok(image)
            }
        }
        deserializer.deserialize_map(ImageVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ImageValue<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ImageValueVisitor;
        impl<'de> Visitor<'de> for ImageValueVisitor {
            type Value = ImageValue<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an attribute value such as {\"N\": \"1\"}")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ImageValue<'de>, A::Error> {
                let mut value = ImageValue::Other;
                while let Some(kind) = map.next_key::<Text<'de>>()? {
                    if kind.0 == "N" {
                        value = ImageValue::Number(map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(value)
            }
        }
        deserializer.deserialize_map(ImageValueVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_keeps_counters_in_order_and_skips_the_rest() {
        let json = r##"{"PK":{"S":"x"},"b_tpm_tc":{"N":"5"},"b_rpm_tc":{"N":"-1"},"rf":{"N":"7"},
            "b_rpm_tk":{"N":"9"},"deep":{"M":{"b_no_tc":{"L":[{"N":"1"}]}}},"b_odd_tc":{"S":"1"}}"##;
        let image: Image<'_> = serde_json::from_str(json).unwrap();
        let names: Vec<_> = image.counters.iter().map(|(name, _)| name.0.as_ref()).collect();
        assert_eq!(names, ["odd", "rpm", "tpm"]);
        let are_borrowed =
            image.counters.iter().all(|(name, _)| matches!(name.0, Cow::Borrowed(_)));
        assert!(are_borrowed);
        assert_eq!(image.counters[0].1, ImageValue::Other);
        assert_eq!(image.attribute_count, 7);
        let item: Item = serde_json::from_str(json).unwrap();
        assert_eq!(Image::from_item(&item), image);
    }

    #[test]
    fn escaped_names_are_read_as_what_they_spell() {
        let image: Image<'_> =
            serde_json::from_str(r##"{"b_\u0072pm_tc":{"\u004e":"5"}}"##).unwrap();
        assert_eq!(image.counters[0].0.0, "rpm");
        assert_eq!(image.counters[0].1, ImageValue::Number(Text(Cow::Borrowed("5"))));
    }

    #[test]
    fn a_position_is_found_in_malformed_records_too() {
        for json in [
            r##"{"eventName":7,"dynamodb":{"Keys":[],"SequenceNumber":"42"}}"##,
            r##"{"dynamodb":{"SequenceNumber":"42","NewImage":{"a":{"N":1e400}}}}"##,
            r##"{"eventSourceARN":8,"dynamodb":{"SequenceNumber":"42","x":"\ud800"}}"##,
        ] {
            let (stream, sequence) = StreamRecord::stream_and_sequence_of(json);
            assert_eq!((stream.as_str(), sequence.unwrap().as_sent()), ("-", "42"), "{json}");
        }
        for json in ["{}", "[1]", "null", r##"{"dynamodb":{"SequenceNumber":42}}"##, "{"] {
            assert!(StreamRecord::stream_and_sequence_of(json).1.is_none(), "{json}");
        }
        let json = r##"{"eventSourceARN":"x/stream/2026","dynamodb":7}"##;
        assert_eq!(StreamRecord::stream_and_sequence_of(json).0.as_str(), "2026");
    }

    #[test]
    fn malformed_record_is_refused_with_the_reason() {
        let error = StreamRecord::from_json("{\"eventName\":\"MODIFY\"}").unwrap_err();
        assert!(error.to_string().contains("dynamodb"), "{error}");
        assert!(StreamRecord::from_json("[]").is_err());
        assert!(StreamRecord::from_json("{\"eventName\":\"UPSERT\",\"dynamodb\":{}}").is_err());
    }
}
