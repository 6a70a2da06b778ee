//! A stream event, read record by record.
//!
//! [`StreamEvent`] leaves every record as text, and [`Batch::read`] parses each on its own. A
//! record that cannot be counted does not affect the others.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{EpochMillis, RecordDeltas, StreamRecord, extract_deltas, extract_shard_deltas};

/// A DynamoDB stream event as Lambda delivers it.
#[derive(Debug, Deserialize)]
pub struct StreamEvent {
    /// The records in stream order, as JSON.
    #[serde(rename = "Records")]
    pub records: Vec<Box<RawValue>>,
}

/// The layouts of bucket items whose records count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layouts {
    /// Composite buckets only.
    #[default]
    Composite,
    /// Also the shards of buckets as zae-limiter 0.10 and later keeps them.
    CompositeAndSharded,
}

/// The records of an event: those with consumption, and those that cannot be counted. The rest is
/// left out.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// The records with consumption, with their deltas.
    pub countable: Vec<RecordDeltas<'a>>,
    /// The records that cannot be counted.
    pub uncountable: Vec<UncountableRecord<'a>>,
    /// The creation time of the oldest record that could be parsed.
    pub oldest: Option<EpochMillis>,
}

/// A record that cannot be counted, with the reason: it cannot be parsed; or it lacks an image, a
/// time or a position; or a counter, a name, the time, the position or the stream's ARN is invalid.
#[derive(Debug)]
pub struct UncountableRecord<'a> {
    /// The record as it was delivered.
    pub json: &'a str,
    /// The reason, as a sentence.
    pub reason: String,
}

impl<'a> Batch<'a> {
    /// Reads every record on its own. Records of items in other layouts count nothing.
    #[must_use]
    pub fn read(records: &'a [Box<RawValue>], layouts: Layouts) -> Self {
        let mut batch = Self { countable: Vec::with_capacity(records.len()), ..Self::default() };
        for record in records {
            batch.add(record.get(), layouts);
        }
        batch
    }

    fn add(&mut self, json: &'a str, layouts: Layouts) {
        let record = match StreamRecord::from_json(json) {
            Ok(record) => record,
            Err(error) => {
                let reason = format!("not a DynamoDB stream record: {error}");
                return self.uncountable.push(UncountableRecord { json, reason });
            }
        };
        if let Some(created) = record.created() {
            self.oldest = Some(self.oldest.map_or(created, |oldest| oldest.min(created)));
        }
        let deltas = match (extract_deltas(&record), layouts) {
            (Ok(None), Layouts::CompositeAndSharded) => extract_shard_deltas(&record),
            (deltas, _) => deltas,
        };
        match deltas {
            Ok(None) => {}
            Ok(Some(deltas)) => self.countable.push(deltas),
            Err(error) => {
                self.uncountable.push(UncountableRecord { json, reason: error.to_string() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncountable_record_does_not_affect_the_others() {
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
        let batch = Batch::read(&event.records, Layouts::Composite);
        let counted: Vec<_> = batch.countable.iter().map(|r| r.sequence.as_sent()).collect();
        assert_eq!(counted, ["9", "10"]);
        assert_eq!(
            batch.uncountable.iter().map(|record| record.json).collect::<Vec<_>>(),
            ["7", &record("8", "x")]
        );
        assert_eq!(batch.oldest.map(EpochMillis::get), Some(8_000));
    }
}
