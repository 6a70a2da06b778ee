//! Buckets in shards, as zae-limiter 0.10 and later keeps them: what each stream record counts, and
//! that windows are exact when the shards' records arrive in any order, split and repeated.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests panic")]

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use sluicegate_core::{
    Batch, Layouts, RecordDeltas, SequenceNumber, StreamRecord, WindowKinds, extract_deltas,
    extract_shard_deltas, group_by_window,
};

const RF: i64 = 1_769_774_400_000;

/// An item with the attributes that version 0.17 writes; only some matter to metering.
fn image(shard: u32, rf: i64, counters: &[(&str, i64)]) -> Value {
    let mut image = json!({
        "PK": {"S": format!("ns/BUCKET#user-1#gpt-4#{shard}")}, "SK": {"S": "#STATE"},
        "entity_id": {"S": "user-1"}, "resource": {"S": "gpt-4"}, "rf": {"N": rf.to_string()},
        "shard_count": {"N": "2"}, "cascade": {"BOOL": false}, "ttl": {"N": "1769780000"},
    });
    for (limit, consumed) in counters {
        for (field, value) in [("tc", *consumed), ("tk", -consumed), ("cp", 9_000), ("wtc", 7)] {
            image[format!("b_{limit}_{field}")] = json!({"N": value.to_string()});
        }
    }
    image
}

fn record(shard: u32, sequence: u64, old: Option<Value>, new: Option<Value>) -> Box<RawValue> {
    let event = match (&old, &new) {
        (None, _) => "INSERT",
        (_, None) => "REMOVE",
        _ => "MODIFY",
    };
    let mut record = json!({
        "eventName": event,
        "eventSourceARN": "arn:aws:dynamodb:eu-west-1:1:table/t/stream/2026-01-28T14:00:00.000",
        "dynamodb": {
            "ApproximateCreationDateTime": RF / 1_000 + 7,
            "Keys": {"PK": {"S": format!("ns/BUCKET#user-1#gpt-4#{shard}")}, "SK": {"S": "#STATE"}},
            "SequenceNumber": (100_000_000_000_000_000_000_u128 + u128::from(sequence)).to_string(),
        },
    });
    for (name, image) in [("OldImage", old), ("NewImage", new)] {
        if let Some(image) = image {
            record["dynamodb"][name] = image;
        }
    }
    to_raw_value(&record).unwrap()
}

/// Shard, time and amounts by limit.
type Counted = (Option<u32>, i64, Vec<(String, i128)>);

fn counted(json: &str) -> Option<Counted> {
    let deltas = extract_shard_deltas(&StreamRecord::from_json(json).unwrap()).unwrap()?;
    assert_eq!((deltas.entity.as_str(), deltas.resource.as_str()), ("ns/user-1", "gpt-4"));
    let RecordDeltas { shard, at, deltas, .. } = deltas;
    let limits = deltas.into_iter().map(|delta| (delta.limit.to_string(), delta.consumed_milli));
    Some((shard, at.get(), limits.collect()))
}

#[test]
fn first_acquire_counts_what_the_new_item_has() {
    let new = image(0, RF, &[("rpm", 1_000), ("tpm", 250_000), ("wcu", 0)]);
    let record = record(0, 1, None, Some(new));
    let limits = [("rpm".to_owned(), 1_000), ("tpm".to_owned(), 250_000)];
    assert_eq!(counted(record.get()), Some((Some(0), RF, limits.into())));
}

#[test]
fn speculative_write_is_dated_by_the_record_and_its_capacity_unit_is_no_usage() {
    let old = image(3, RF, &[("rpm", 1_000), ("wcu", 1_000)]);
    let new = image(3, RF, &[("rpm", 3_000), ("wcu", 2_000)]);
    let record = record(3, 2, Some(old), Some(new));
    assert_eq!(counted(record.get()), Some((Some(3), RF + 7_000, vec![("rpm".to_owned(), 2_000)])));
}

#[test]
fn refill_doubling_clone_and_removal_count_nothing() {
    let spent = image(0, RF, &[("rpm", 5_000), ("wcu", 0)]);
    let refilled = image(0, RF + 9, &[("rpm", 5_000), ("wcu", 0)]);
    let mut doubled = spent.clone();
    doubled["shard_count"] = json!({"N": "4"});
    let only_wcu = image(0, RF, &[("rpm", 5_000), ("wcu", 1_000)]);
    let clone = image(2, RF, &[("rpm", 0), ("wcu", 0)]);
    for (shard, old, new) in [
        (0, Some(spent.clone()), Some(refilled)),
        (0, Some(spent.clone()), Some(doubled)),
        (0, Some(spent.clone()), Some(only_wcu)),
        (2, None, Some(clone)),
        (0, Some(spent), None),
    ] {
        assert_eq!(counted(record(shard, 1, old, new).get()), None);
    }
}

#[test]
fn refund_is_negative_and_a_limit_that_joins_counts_from_zero() {
    let old = image(1, RF, &[("rpm", 5_000)]);
    let new = image(1, RF + 60_000, &[("rpm", 2_000), ("tpm", 400)]);
    let limits = [("rpm".to_owned(), -3_000), ("tpm".to_owned(), 400)];
    let record = record(1, 9, Some(old), Some(new));
    assert_eq!(counted(record.get()), Some((Some(1), RF + 60_000, limits.into())));
}

#[test]
fn shards_count_nothing_unless_switched_on() {
    let insert = record(0, 1, None, Some(image(0, RF, &[("rpm", 1_000)])));
    assert!(extract_deltas(&StreamRecord::from_json(insert.get()).unwrap()).unwrap().is_none());
    let records = [insert];
    let count = |layouts| Batch::read(&records, layouts).countable.len();
    assert_eq!((count(Layouts::Composite), count(Layouts::CompositeAndSharded)), (0, 1));
    let keys = Batch::read(&records, Layouts::CompositeAndSharded).countable[0].item_keys();
    assert_eq!(keys, ("ns/BUCKET#user-1#gpt-4#0".to_owned(), "#STATE".to_owned()));
}

#[test]
fn shard_that_cannot_be_counted_is_not_skipped() {
    let broken = image(0, RF, &[("rpm", 1_000)]).to_string().replace("\"1000\"", "\"1.5\"");
    let broken = record(0, 1, None, serde_json::from_str(&broken).unwrap());
    let blind = record(0, 2, Some(json!({})), Some(image(0, RF, &[("rpm", 1_000)])));
    let records = [broken, blind];
    let batch = Batch::read(&records, Layouts::CompositeAndSharded);
    let reasons: Vec<_> = batch.uncountable.iter().map(|record| record.reason.as_str()).collect();
    assert!(reasons[0].contains("counter of limit \"rpm\" in NewImage"), "{reasons:?}");
    assert!(reasons[1].contains("MODIFY without OldImage"), "{reasons:?}");
}

/// One write to a shard.
#[derive(Debug, Clone)]
struct Step {
    shard: u32,
    /// Less than zero returns; for an item that is gone it creates one.
    amount: i64,
    is_removal: bool,
    after_ms: i64,
}

const SHARDS: u32 = 4;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..SHARDS, -2_000_i64..5_000, 0..12_u8, 0_i64..1_500_000);
    let step = step.prop_map(|(shard, amount, kind, after_ms)| Step {
        shard,
        amount,
        is_removal: kind == 0,
        after_ms,
    });
    proptest::collection::vec(step, 1..60)
}

/// The records of each shard, in order, and the growth of the bucket's counters.
fn write(steps: &[Step]) -> (Vec<Vec<Box<RawValue>>>, i128) {
    let mut lanes = vec![Vec::new(); SHARDS as usize];
    let mut items: HashMap<u32, Value> = HashMap::new();
    let mut counters: HashMap<u32, i64> = HashMap::new();
    let (mut now, mut growth) = (RF, 0);
    for (n, step) in steps.iter().enumerate() {
        now += step.after_ms;
        let old = items.remove(&step.shard);
        let new = match &old {
            Some(_) if step.is_removal => None,
            _ => {
                let counter = counters.entry(step.shard).or_default();
                // A new item has a counter from zero.
                *counter = old.as_ref().map_or(0, |_| *counter) + step.amount;
                growth += i128::from(step.amount);
                Some(image(step.shard, now, &[("rpm", *counter), ("wcu", *counter)]))
            }
        };
        if let Some(new) = &new {
            items.insert(step.shard, new.clone());
        }
        lanes[step.shard as usize].push(record(step.shard, n as u64, old, new));
    }
    (lanes, growth)
}

/// Windows that obey the condition of the processor's update: the watermark is absent or below the
/// first record.
#[derive(Default)]
struct Windows {
    watermarks: HashMap<(String, String), SequenceNumber>,
    sums: BTreeMap<String, i128>,
}

impl Windows {
    fn deliver(&mut self, records: &[Box<RawValue>], watermark_of: impl Fn(&str) -> String) {
        let batch = Batch::read(records, Layouts::CompositeAndSharded);
        assert!(batch.uncountable.is_empty(), "{:?}", batch.uncountable);
        for group in group_by_window(batch.countable, &WindowKinds::default()).groups {
            let window = group.key().sk();
            let at = (window.clone(), watermark_of(&group.watermark_attribute()));
            while let Some(update) = group.next_update(self.watermarks.get(&at)) {
                self.watermarks.insert(at.clone(), update.last);
                for (_, milli) in update.consumed_milli {
                    *self.sums.entry(window.clone()).or_default() += milli;
                }
            }
        }
    }

    fn sum(&self, kind: &str) -> i128 {
        self.sums.iter().filter(|(sk, _)| sk.contains(kind)).map(|(_, sum)| sum).sum()
    }
}

/// Delivers the lanes in turns of random length, each turn after a step back of random length. The
/// shards of a bucket are in any shards of the stream.
fn deliver(lanes: &[Vec<Box<RawValue>>], turns: &[(u8, u8, u8)], windows: &mut Windows) {
    let mut next = vec![0_usize; lanes.len()];
    let each = (0..lanes.len()).map(|lane| (u8::try_from(lane).unwrap(), u8::MAX, 9));
    for (lane, length, back) in turns.iter().copied().chain(each) {
        let lane = usize::from(lane) % lanes.len();
        let from = next[lane].saturating_sub(usize::from(back));
        let to = (next[lane] + usize::from(length)).min(lanes[lane].len());
        windows.deliver(&lanes[lane][from..to], str::to_owned);
        next[lane] = to;
    }
}

proptest! {
    #[test]
    fn windows_of_a_bucket_in_shards_are_exact_however_the_shards_are_delivered(
        steps in steps(),
        turns in proptest::collection::vec((any::<u8>(), 0..9_u8, 0..6_u8), 0..40),
    ) {
        let (lanes, growth) = write(&steps);
        let mut windows = Windows::default();
        deliver(&lanes, &turns, &mut windows);
        prop_assert_eq!(windows.sum("#hour#"), growth);
        prop_assert_eq!(windows.sum("#day#"), growth);
        let done = windows.sums.clone();
        deliver(&lanes, &turns, &mut windows);
        prop_assert_eq!(windows.sums, done, "delivered again");
    }
}

/// The reason for a watermark for each shard: one for the whole bucket takes a record of one shard
/// for a duplicate when another shard's later record came first.
#[test]
fn one_watermark_for_all_shards_would_lose_records() {
    let acquire = |shard, n| record(shard, n, None, Some(image(shard, RF, &[("rpm", 1_000)])));
    let (early, late) = ([acquire(0, 1)], [acquire(1, 2)]);
    let sum = |watermark_of: fn(&str) -> String| {
        let mut windows = Windows::default();
        windows.deliver(&late, watermark_of);
        windows.deliver(&early, watermark_of);
        windows.sum("#hour#")
    };
    assert_eq!(sum(str::to_owned), 2_000);
    assert_eq!(sum(|attribute| attribute.split_once('#').unwrap().0.to_owned()), 1_000);
}
