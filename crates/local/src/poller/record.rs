//! A record of the Streams API in the JSON shape that Lambda hands to functions.
//!
//! Both shapes carry the same facts; they differ in the case of `userIdentity` and in the ARN of
//! the stream, which only Lambda adds. Absent members stay absent.

use std::collections::HashMap;

use aws_sdk_dynamodbstreams::primitives::DateTime;
use aws_sdk_dynamodbstreams::types::{self, AttributeValue};
use serde::{Deserialize, Serialize};
use serde_dynamo::Item;
use serde_json::value::{RawValue, to_raw_value};

use crate::quirks;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LambdaRecord<'a> {
    #[serde(rename = "eventID")]
    event_id: Option<String>,
    event_name: Option<&'a str>,
    event_version: Option<String>,
    event_source: Option<String>,
    aws_region: Option<String>,
    dynamodb: Change<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_identity: Option<UserIdentity<'a>>,
    #[serde(rename = "eventSourceARN")]
    event_source_arn: &'a str,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Change<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    approximate_creation_date_time: Option<serde_json::Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_image: Option<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_image: Option<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_number: Option<String>,
    size_bytes: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_view_type: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UserIdentity<'a> {
    r#type: &'a str,
    principal_id: &'a str,
}

/// Converts a record read from the stream `stream_arn`.
///
/// # Errors
/// The serialiser's error; no record of the SDK is known to cause one.
pub(super) fn to_lambda_record(
    record: types::Record,
    stream_arn: &str,
) -> Result<Box<RawValue>, serde_json::Error> {
    let change = record.dynamodb.unwrap_or_else(|| types::StreamRecord::builder().build());
    let identity = record.user_identity.as_ref().map(quirks::user_identity);
    to_raw_value(&LambdaRecord {
        event_id: record.event_id,
        event_name: record.event_name.as_ref().map(types::OperationType::as_str),
        event_version: record.event_version,
        event_source: record.event_source,
        aws_region: record.aws_region,
        dynamodb: Change {
            approximate_creation_date_time: change.approximate_creation_date_time.map(seconds),
            keys: change.keys.map(item),
            new_image: change.new_image.map(item),
            old_image: change.old_image.map(item),
            sequence_number: change.sequence_number,
            size_bytes: change.size_bytes.unwrap_or_default(),
            stream_view_type: change.stream_view_type.as_ref().map(types::StreamViewType::as_str),
        },
        user_identity: identity.map(|(r#type, principal_id)| UserIdentity { r#type, principal_id }),
        event_source_arn: stream_arn,
    })
}

/// The time at which a record was made, in seconds since 1970, if it says so.
pub(super) fn created_s(record: &RawValue) -> Option<f64> {
    #[derive(Deserialize)]
    struct Stamped {
        dynamodb: Stamp,
    }
    #[derive(Deserialize)]
    struct Stamp {
        #[serde(rename = "ApproximateCreationDateTime")]
        created: f64,
    }
    serde_json::from_str(record.get()).ok().map(|stamped: Stamped| stamped.dynamodb.created)
}

fn item(attributes: HashMap<String, AttributeValue>) -> Item {
    Item::from(attributes)
}

/// Epoch seconds, a whole number where it is one.
fn seconds(time: DateTime) -> serde_json::Number {
    let whole = serde_json::Number::from(time.secs());
    if time.subsec_nanos() == 0 {
        return whole;
    }
    serde_json::Number::from_f64(time.as_secs_f64()).unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use aws_lambda_events::event::dynamodb::EventRecord;
    use aws_sdk_dynamodbstreams::primitives::Blob;
    use aws_sdk_dynamodbstreams::types::{Identity, OperationType, StreamRecord, StreamViewType};

    use super::*;

    fn record(identity: Option<Identity>, time: DateTime) -> types::Record {
        types::Record::builder()
            .event_id("e1")
            .event_name(OperationType::Remove)
            .event_version("1.1")
            .event_source("aws:dynamodb")
            .aws_region("us-east-1")
            .set_user_identity(identity)
            .dynamodb(
                StreamRecord::builder()
                    .approximate_creation_date_time(time)
                    .keys("PK", AttributeValue::S("p".into()))
                    .old_image("b", AttributeValue::B(Blob::new([0, 1, 2])))
                    .old_image("n", AttributeValue::N("-1.50".into()))
                    .old_image("l", AttributeValue::L(vec![AttributeValue::Null(true)]))
                    .sequence_number("100000000000000000001")
                    .size_bytes(9)
                    .stream_view_type(StreamViewType::NewAndOldImages)
                    .build(),
            )
            .build()
    }

    fn convert(record: types::Record) -> serde_json::Value {
        let raw = to_lambda_record(record, "arn:stream").unwrap();
        serde_json::from_str::<EventRecord>(raw.get()).unwrap();
        serde_json::from_str(raw.get()).unwrap()
    }

    #[test]
    fn a_record_has_lambdas_shape() {
        let identity =
            Identity::builder().r#type("Service").principal_id("dynamodb.amazonaws.com").build();
        let converted = convert(record(Some(identity), DateTime::from_secs(1_480_642_020)));
        let expected = serde_json::json!({
            "eventID": "e1",
            "eventName": "REMOVE",
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": "us-east-1",
            "dynamodb": {
                "ApproximateCreationDateTime": 1_480_642_020,
                "Keys": {"PK": {"S": "p"}},
                "OldImage": {
                    "b": {"B": "AAEC"},
                    "n": {"N": "-1.50"},
                    "l": {"L": [{"NULL": true}]},
                },
                "SequenceNumber": "100000000000000000001",
                "SizeBytes": 9,
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
            "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
            "eventSourceARN": "arn:stream",
        });
        assert_eq!(converted, expected);
    }

    #[test]
    fn absent_fields_stay_absent_and_fractions_of_seconds_are_kept() {
        let fraction = record(None, DateTime::from_secs_f64(1_480_642_020.5));
        let raw = to_lambda_record(fraction.clone(), "arn:stream").unwrap();
        assert_eq!(created_s(&raw), Some(1_480_642_020.5));
        let odd = serde_json::value::to_raw_value(&serde_json::json!({"dynamodb": 7})).unwrap();
        assert_eq!(created_s(&odd), None);
        let converted = convert(fraction);
        assert!(converted.get("userIdentity").is_none());
        assert!(converted["dynamodb"].get("NewImage").is_none());
        assert_eq!(converted["dynamodb"]["ApproximateCreationDateTime"], 1_480_642_020.5);
    }
}
