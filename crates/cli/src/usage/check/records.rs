//! The records of a stream, as far as a check needs them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use aws_lambda_events::event::streams::DynamoDbEventResponse;
use serde::Deserialize;
use serde_json::value::RawValue;
use sluicegate::types::LimitName;
use sluicegate::{EntityId, Resource};
use sluicegate_core::keys::{ItemKey, parse_counter_attribute};
use sluicegate_core::{EpochMillis, StreamRecord, extract_deltas};
use sluicegate_local::poller::Handler;

use super::findings::Figures;
use crate::whose::Whose;

/// The counters of a bucket, in millitokens.
pub(super) type Counters = BTreeMap<LimitName, i128>;

/// One change of a bucket.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// The counters before it; none: the item is new.
    pub(super) before: Option<Counters>,
    /// The counters after it; none: the item is gone.
    pub(super) after: Option<Counters>,
    /// The time and the amounts that it counts; none: it counts nothing.
    pub(super) counts: Option<(EpochMillis, Figures)>,
}

/// The changes of one bucket, in order.
#[derive(Debug, Clone)]
pub(super) enum History {
    Changes(Vec<Change>),
    /// Some record cannot be read, for this reason.
    Malformed(String),
}

/// A handler that keeps the records of the requested buckets.
pub(super) struct Collector<'a> {
    whose: &'a Whose,
    found: Mutex<BTreeMap<(EntityId, Resource), History>>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(whose: &'a Whose) -> Self {
        Self { whose, found: Mutex::default() }
    }

    pub(super) fn into_found(self) -> BTreeMap<(EntityId, Resource), History> {
        self.found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, json: &str) {
        let Ok(record) = StreamRecord::from_json(json) else { return };
        let (pk, sk) = record.keys();
        let Ok(Some(ItemKey::Bucket(entity, resource))) = ItemKey::parse(pk, sk) else { return };
        let is_meant = match self.whose {
            Whose::Bucket(of, on) => *of == entity && *on == resource,
            Whose::Entity(of) => *of == entity,
            Whose::Resource(on) => *on == resource,
        };
        if !is_meant {
            return;
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let history =
            found.entry((entity, resource)).or_insert_with(|| History::Changes(Vec::new()));
        match (&mut *history, change(&record, json)) {
            (History::Changes(changes), Ok(change)) => changes.push(change),
            (_, Err(why)) => *history = History::Malformed(why),
            (History::Malformed(_), Ok(_)) => {}
        }
    }
}

impl Handler for Collector<'_> {
    type Error = std::convert::Infallible;

    async fn handle(
        &self,
        records: &[Box<RawValue>],
    ) -> Result<DynamoDbEventResponse, Self::Error> {
        records.iter().for_each(|record| self.take(record.get()));
        Ok(DynamoDbEventResponse::default())
    }
}

#[derive(Deserialize)]
struct Raw {
    dynamodb: RawChange,
}

#[derive(Deserialize)]
struct RawChange {
    #[serde(rename = "OldImage")]
    old: Option<BTreeMap<String, serde_json::Value>>,
    #[serde(rename = "NewImage")]
    new: Option<BTreeMap<String, serde_json::Value>>,
}

fn change(record: &StreamRecord<'_>, json: &str) -> Result<Change, String> {
    let deltas = extract_deltas(record).map_err(|error| error.to_string())?;
    let raw: Raw = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let counts = deltas.map(|deltas| {
        let consumed = deltas.deltas.iter();
        let consumed = consumed.map(|delta| (delta.limit.clone(), delta.consumed_milli));
        (deltas.at, Figures { consumed_milli: consumed.collect(), events: 1 })
    });
    let RawChange { old, new } = raw.dynamodb;
    let (before, after) = (old.map(|image| counters(&image)), new.map(|image| counters(&image)));
    Ok(Change { before, after, counts })
}

fn counters(image: &BTreeMap<String, serde_json::Value>) -> Counters {
    let counter = |(attribute, value): (&String, &serde_json::Value)| {
        let limit = LimitName::new(parse_counter_attribute(attribute)?).ok()?;
        Some((limit, value.get("N")?.as_str()?.parse().ok()?))
    };
    image.iter().filter_map(counter).collect()
}
