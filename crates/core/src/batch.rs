//! A stream event and what can be read from it, record by record.
//!
//! Every record stays the text that it is until it is its turn: one odd record does not spoil the
//! others.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{EpochMillis, RecordDeltas, StreamRecord, extract_deltas};

/// A DynamoDB stream event as Lambda delivers it.
#[derive(Debug, Deserialize)]
pub struct StreamEvent {
    /// The records in stream order, as JSON.
    #[serde(rename = "Records")]
    pub records: Vec<Box<RawValue>>,
}

/// The records of an event, sorted into what counts and what is odd.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// The consumption, one entry for each record that counts anything.
    pub counted: Vec<RecordDeltas<'a>>,
    /// Records that cannot be counted.
    pub odd: Vec<MalformedRecord<'a>>,
    /// Creation of the oldest record.
    pub oldest: Option<EpochMillis>,
}

/// A record that cannot be counted, and why.
#[derive(Debug)]
pub struct MalformedRecord<'a> {
    /// The record as it was delivered.
    pub json: &'a str,
    /// Why it cannot be counted, as a sentence.
    pub reason: String,
}

impl<'a> Batch<'a> {
    /// Reads every record on its own.
    #[must_use]
    pub fn read(records: &'a [Box<RawValue>]) -> Self {
        let mut batch = Self { counted: Vec::with_capacity(records.len()), ..Self::default() };
        for record in records {
            batch.add(record.get());
        }
        batch
    }

    fn add(&mut self, json: &'a str) {
        let record = match StreamRecord::from_json(json) {
            Ok(record) => record,
            Err(error) => {
                let reason = format!("not a DynamoDB stream record: {error}");
                return self.odd.push(MalformedRecord { json, reason });
            }
        };
        if let Some(created) = record.created() {
            self.oldest = Some(self.oldest.map_or(created, |oldest| oldest.min(created)));
        }
        match extract_deltas(&record) {
            Ok(None) => {}
            Ok(Some(deltas)) => self.counted.push(deltas),
            Err(error) => self.odd.push(MalformedRecord { json, reason: error.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_record_does_not_spoil_the_others() {
        let record = |sequence: &str, counter: &str| {
            format!(
                r##"{{"eventName":"INSERT","dynamodb":{{"ApproximateCreationDateTime":{sequence},
                "Keys":{{"PK":{{"S":"ENTITY#u"}},"SK":{{"S":"#BUCKET#r"}}}},
                "NewImage":{{"b_rpm_tc":{{"N":"{counter}"}}}},"SequenceNumber":"{sequence}"}}}}"##
            )
        };
        let json = format!(
            "{{\"Records\":[{},7,{},{}]}}",
            record("9", "1"),
            record("8", "x"),
            record("10", "2")
        );
        let event: StreamEvent = serde_json::from_str(&json).unwrap();
        let batch = Batch::read(&event.records);
        let counted: Vec<_> = batch.counted.iter().map(|r| r.sequence.as_sent()).collect();
        assert_eq!(counted, ["9", "10"]);
        assert_eq!(
            batch.odd.iter().map(|odd| odd.json).collect::<Vec<_>>(),
            ["7", &record("8", "x")]
        );
        assert_eq!(batch.oldest.map(EpochMillis::get), Some(8_000));
    }
}
