//! Generated histories: the stream records of buckets that live, refill, change and expire, with
//! their sums.
//!
//! The generator computes the sums as it goes, with arithmetic of its own, so that they are
//! independent of the product's.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// Identifies a usage window: entity, resource, `hour` or `day`, and its start in epoch seconds.
pub type WindowId = (String, String, &'static str, i64);

/// The content of a usage window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Millitokens by limit.
    pub consumed_milli: BTreeMap<String, i128>,
    /// Records that named any limit.
    pub events: u64,
}

/// Usage windows by identity.
pub type Usages = BTreeMap<WindowId, Usage>;

/// Records of one stream in order, and their sums.
#[derive(Debug)]
pub struct History {
    /// The records as Lambda delivers them.
    pub records: Vec<Box<RawValue>>,
    /// The hour and day windows.
    pub windows: Usages,
    /// The highest sum of each limit of each window, of all that it had after a record.
    pub peaks: BTreeMap<(WindowId, String), i128>,
    /// Growth of every counter, in millitokens, over all lives of its bucket.
    pub growth: BTreeMap<(String, String, String), i128>,
}

/// The parameters of a generated history.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The same seed makes the same history.
    pub seed: u64,
    /// Number of records.
    pub records: usize,
    /// Number of entities, each with a bucket on every resource.
    pub entities: usize,
    /// Number of resources.
    pub resources: usize,
    /// Longest pause between two records, in milliseconds.
    pub pause_ms: i64,
    /// The label in the records' stream ARN.
    pub stream_label: &'static str,
}

impl Shape {
    /// A few busy buckets over some days around the end of a month.
    pub fn new(seed: u64, records: usize) -> Self {
        Self {
            seed,
            records,
            entities: 5,
            resources: 2,
            pause_ms: 100_000,
            stream_label: "2026-01-30T00:00:00.000",
        }
    }
}

/// 2026-01-30T12:00:00Z.
const START_MS: i64 = 1_769_774_400_000;
/// The burst of every limit.
pub const BURST_MILLI: i64 = 60_000;
/// The limit that is one of calendar days.
pub const DAILY: &str = "tpm";
const LIMITS: [&str; 6] = ["rpm", "tpm", "rpm.v2", "ttl", "window", "events"];

struct Generator {
    rng: Rng,
    now_ms: i64,
    sequence: u128,
    arn: String,
    buckets: Vec<Bucket>,
    history: History,
}

struct Bucket {
    entity: String,
    resource: String,
    life: Option<Life>,
}

#[derive(Clone)]
struct Life {
    refilled_at: i64,
    /// Balance and counter by limit.
    limits: BTreeMap<&'static str, (i64, i64)>,
}

impl History {
    /// Generates a history.
    pub fn generate(shape: &Shape) -> Self {
        let mut buckets = Vec::new();
        for entity in 0..shape.entities {
            for resource in 0..shape.resources {
                let (entity, resource) = (format!("user-{entity}"), format!("model-{resource}"));
                buckets.push(Bucket { entity, resource, life: None });
            }
        }
        let history = Self {
            records: Vec::new(),
            windows: BTreeMap::new(),
            peaks: BTreeMap::new(),
            growth: BTreeMap::new(),
        };
        let mut generator = Generator {
            rng: Rng::with_seed(shape.seed),
            now_ms: START_MS,
            sequence: 100_000_000_000_000_000_000,
            arn: format!(
                "arn:aws:dynamodb:us-east-1:000000000000:table/t/stream/{}",
                shape.stream_label
            ),
            buckets,
            history,
        };
        while generator.history.records.len() < shape.records {
            generator.step(shape.pause_ms);
        }
        generator.history
    }
}

impl Generator {
    fn step(&mut self, pause_ms: i64) {
        // Often the same millisecond, sometimes a long pause.
        self.now_ms += if self.rng.u8(..4) == 0 { 0 } else { self.rng.i64(0..=pause_ms) };
        // Grows from 21 to 38 digits, by jumps in a long history.
        let grown = if self.rng.u16(..400) == 0 { self.sequence * 9 } else { self.sequence };
        let ceiling = 10_u128.pow(38);
        self.sequence = if grown < ceiling { grown } else { self.sequence };
        self.sequence += u128::from(self.rng.u32(1..1_000_000));
        let which = self.rng.usize(..self.buckets.len());
        match self.buckets[which].life.clone() {
            None => self.create(which),
            Some(life) => self.change(which, &life),
        }
    }

    fn create(&mut self, which: usize) {
        let names = self.rng.choose_multiple(LIMITS, 2);
        let limits = names.into_iter().map(|name| (name, (0, 0))).collect();
        let mut life = Life { refilled_at: self.now_ms, limits };
        let consumed = self.consume(&mut life, 0..5_000);
        self.emit(which, "INSERT", None, Some(&life), self.now_ms, &consumed);
        self.buckets[which].life = Some(life);
    }

    fn change(&mut self, which: usize, old: &Life) {
        let mut new = old.clone();
        let kind = self.rng.u8(..20);
        if kind == 0 {
            self.emit(which, "REMOVE", Some(old), None, self.now_ms, &BTreeMap::new());
            self.buckets[which].life = None;
            return;
        }
        let moves_refill = kind < 10;
        if moves_refill {
            new.refilled_at = self.now_ms;
        }
        match kind {
            // A limit joins or leaves with the write.
            1 => drop(new.limits.entry(LIMITS[self.rng.usize(..LIMITS.len())]).or_default()),
            2 if new.limits.len() > 1 => drop(new.limits.pop_first()),
            _ => {}
        }
        let consumed = match kind {
            // A claim of refill that consumes nothing.
            3 => BTreeMap::new(),
            // A refund.
            10..=12 => self.consume(&mut new, -2_000..0),
            _ => self.consume(&mut new, 0..5_000),
        };
        // A change that moves the refill time is dated by it; any other by the record's second.
        let created = self.now_ms - self.now_ms % 1_000;
        let at = if moves_refill && new.refilled_at != old.refilled_at {
            new.refilled_at
        } else {
            created.max(new.refilled_at)
        };
        self.emit(which, "MODIFY", Some(old), Some(&new), at, &consumed);
        self.buckets[which].life = Some(new);
    }

    /// Takes from some limits; returns the changes, never a zero.
    fn consume(
        &mut self,
        life: &mut Life,
        range: std::ops::Range<i64>,
    ) -> BTreeMap<&'static str, i64> {
        let mut consumed = BTreeMap::new();
        for (name, (balance, counter)) in &mut life.limits {
            let amount = self.rng.i64(range.clone());
            if amount != 0 && self.rng.u8(..5) != 0 {
                *balance -= amount;
                *counter += amount;
                consumed.insert(*name, amount);
            }
        }
        consumed
    }

    fn emit(
        &mut self,
        which: usize,
        event: &str,
        old: Option<&Life>,
        new: Option<&Life>,
        at_ms: i64,
        consumed: &BTreeMap<&'static str, i64>,
    ) {
        let bucket = &self.buckets[which];
        let keys = json!({
            "PK": {"S": format!("ENTITY#{}", bucket.entity)},
            "SK": {"S": format!("#BUCKET#{}", bucket.resource)},
        });
        let mut change = json!({
            "ApproximateCreationDateTime": self.now_ms / 1_000,
            "Keys": keys,
            "SequenceNumber": self.sequence.to_string(),
            "SizeBytes": 400,
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        });
        for (name, life) in [("OldImage", old), ("NewImage", new)] {
            if let Some(life) = life {
                change[name] = image(&keys, bucket, life);
            }
        }
        let record = json!({
            "eventID": format!("{:032x}", self.sequence), "eventName": event, "eventVersion": "1.1",
            "eventSource": "aws:dynamodb", "awsRegion": "us-east-1", "eventSourceARN": self.arn,
            "dynamodb": change,
        });
        self.history.records.push(to_raw_value(&record).expect("JSON from JSON"));
        if !consumed.is_empty() {
            self.history.count(&bucket.entity, &bucket.resource, at_ms, consumed);
        }
    }
}

fn image(keys: &Value, bucket: &Bucket, life: &Life) -> Value {
    let mut image = keys.clone();
    image["entity_id"] = json!({"S": bucket.entity});
    image["resource"] = json!({"S": bucket.resource});
    image["rf"] = json!({"N": life.refilled_at.to_string()});
    for (limit, (balance, counter)) in &life.limits {
        let fields = [
            ("tk", *balance),
            ("cp", 60_000),
            ("bx", BURST_MILLI),
            // A calendar limit refills by periods, not steadily.
            ("ra", if *limit == DAILY { 0 } else { 60_000 }),
            ("rp", 60_000),
            ("tc", *counter),
        ];
        for (field, value) in fields {
            image[format!("b_{limit}_{field}")] = json!({"N": value.to_string()});
        }
        if *limit == DAILY {
            image[format!("b_{limit}_cal")] = json!({"S": "day"});
        }
    }
    image
}

impl History {
    fn count(
        &mut self,
        entity: &str,
        resource: &str,
        at_ms: i64,
        consumed: &BTreeMap<&'static str, i64>,
    ) {
        let at_s = at_ms / 1_000;
        for (kind, length_s) in [("hour", 3_600), ("day", 86_400)] {
            let start_s = at_s / length_s * length_s;
            let id = (entity.to_owned(), resource.to_owned(), kind, start_s);
            let usage = self.windows.entry(id.clone()).or_default();
            usage.events += 1;
            for (limit, amount) in consumed {
                let sum = usage.consumed_milli.entry((*limit).to_owned()).or_default();
                *sum += i128::from(*amount);
                let peak = self.peaks.entry((id.clone(), (*limit).to_owned())).or_default();
                *peak = (*peak).max(*sum);
            }
        }
        for (limit, amount) in consumed {
            let id = (entity.to_owned(), resource.to_owned(), (*limit).to_owned());
            *self.growth.entry(id).or_default() += i128::from(*amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_one_history() {
        let of = |seed| History::generate(&Shape::new(seed, 500));
        let (a, b, other) = (of(1), of(1), of(2));
        let text = |h: &History| h.records.iter().map(|r| r.get().to_owned()).collect::<Vec<_>>();
        assert_eq!(text(&a), text(&b));
        assert_eq!(a.windows, b.windows);
        assert_ne!(text(&a), text(&other));
    }

    #[test]
    fn a_history_has_something_of_everything() {
        let history = History::generate(&Shape::new(3, 5_000));
        let names = ["INSERT", "MODIFY", "REMOVE"]
            .map(|name| history.records.iter().filter(|r| r.get().contains(name)).count());
        assert!(names.iter().all(|&n| n > 20), "{names:?}");
        let days = history.windows.keys().filter(|id| id.2 == "day").count();
        assert!(days > 10, "{days} day windows");
        let last = history.records.last().unwrap().get();
        let digits = last.split("\"SequenceNumber\":\"").nth(1).unwrap().find('"').unwrap();
        assert!(digits > 25, "{digits} digits");
    }
}
