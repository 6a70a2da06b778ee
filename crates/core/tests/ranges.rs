//! However large the amounts are and however often they come: what legal calls write can be read
//! again, and its stream records can be counted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

#[allow(dead_code, unused_imports, reason = "shared with other tests")]
#[path = "support/fixtures.rs"]
mod fixtures;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "support/lone.rs"]
mod lone;

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_dynamo::{AttributeValue, Item};
use serde_json::{Map, Value, json};
use sluicegate_core::keys::{self, BucketField};
use sluicegate_core::{
    Amounts, Change, CompositeBucket, Configuration, EpochMillis, LeaseRange, LeaseTerms,
    LimitName, Millitokens, Outcome, Purpose, QueuedRequest, RequestId, Rule, Rules, StreamRecord,
    UsageWindow, WindowKinds, WritePlan, extract_deltas, group_by_window,
};

use self::fixtures::{T0, at, milli, name};
use self::lone::{Lone, Step, lease, request};

const MAX: i64 = Millitokens::MAX.get();
/// Writes that one call takes at most, those that another process came before included.
const WRITES_MAX: usize = 4;

/// Millitokens by limit.
type Sums = BTreeMap<LimitName, i128>;

fn magnitude() -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(MAX), 1 => Just(MAX - 1), 1 => Just(MAX / 2), 1 => 1..=MAX, 2 => 1..=9_i64]
}

fn signed() -> impl Strategy<Value = i64> {
    (magnitude(), any::<bool>()).prop_map(|(amount, takes)| if takes { amount } else { -amount })
}

fn rule() -> impl Strategy<Value = Rule> {
    let refill = prop_oneof![Just((0, 1)), Just((MAX, 1)), Just((1, 1_000)), Just((MAX, 1_000))];
    (magnitude(), refill)
        .prop_map(|(burst, (amount, period_ms))| fixtures::rule(burst, amount, period_ms))
}

#[derive(Debug, Clone)]
enum Call {
    Acquire(i64),
    /// Of each of the two limits.
    Correct([i64; 2]),
    /// The same without conditions on the balance.
    Force([i64; 2]),
    Settle {
        returned: i64,
        counted: i64,
    },
    Lease {
        amount: i64,
        returned: i64,
        counted: i64,
    },
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        1 => magnitude().prop_map(Call::Acquire),
        2 => [signed(), signed()].prop_map(Call::Correct),
        2 => [signed(), signed()].prop_map(Call::Force),
        1 => (magnitude(), signed()).prop_map(|(returned, counted)| Call::Settle { returned, counted }),
        1 => (magnitude(), magnitude(), signed()).prop_map(|(amount, returned, counted)| {
            Call::Lease { amount, returned, counted }
        }),
    ]
}

impl Call {
    fn request(&self, n: u64, configuration: &Configuration, now: EpochMillis) -> QueuedRequest {
        let both = |[a, b]: [i64; 2]| Amounts::from([(name("a"), milli(a)), (name("b"), milli(b))]);
        let one = |amount| Amounts::from([(name("a"), milli(amount))]);
        let id = RequestId::from_bits(n);
        let (purpose, amounts) = match *self {
            Self::Acquire(amount) => (Purpose::Acquire, one(amount)),
            Self::Correct(by) | Self::Force(by) => (Purpose::Correct, both(by)),
            Self::Settle { returned, counted } => {
                let counted = Some(both([counted, counted]));
                let terms =
                    LeaseTerms { returned: one(returned), counted, ..LeaseTerms::default() };
                return lease(id, terms, configuration, now);
            }
            Self::Lease { amount, returned, counted } => {
                let wanted = LeaseRange { least: milli(amount), most: milli(amount) };
                let terms = LeaseTerms {
                    wanted: BTreeMap::from([(name("a"), wanted)]),
                    returned: one(returned),
                    counted: Some(one(counted)),
                };
                return lease(id, terms, configuration, now);
            }
        };
        request(id, purpose, amounts, configuration, now)
    }
}

/// A bucket as a table has it, which adds without bounds.
struct Table {
    item: Option<Item>,
    writes: u64,
    /// By how much the counters moved.
    counted: Sums,
    usage: Sums,
}

impl Table {
    fn image(&self) -> Option<CompositeBucket> {
        let item = self.item.as_ref()?;
        Some(CompositeBucket::from_item(item).expect("it can be read").unwrap())
    }

    /// One write; true if its conditions held.
    fn write(&mut self, plan: &WritePlan, now: EpochMillis) -> bool {
        let before = self.image();
        let Some(after) = plan.apply(before.as_ref()) else { return false };
        let mut attributes = after.to_item().into_inner();
        for change in &plan.changes {
            // As the table adds, whatever becomes of it.
            let Change::Add { limit, tokens, consumed } = change else { continue };
            for (field, by) in [(BucketField::Tokens, *tokens), (BucketField::Consumed, *consumed)]
            {
                let attribute = keys::bucket_attribute(limit, field);
                let sum = number(&self.item, &attribute) + i128::from(by);
                attributes.insert(attribute, AttributeValue::N(sum.to_string()));
            }
        }
        let old = self.item.replace(attributes.into());
        self.writes += 1;
        for limit in [name("a"), name("b")] {
            let counter = keys::bucket_attribute(&limit, BucketField::Consumed);
            let moved = number(&self.item, &counter) - number(&old, &counter);
            *self.counted.entry(limit).or_default() += moved;
        }
        self.meter(old.as_ref(), now);
        true
    }

    /// Counts the record of the write in a usage window.
    fn meter(&mut self, old: Option<&Item>, now: EpochMillis) {
        let new = self.item.as_ref().unwrap();
        let record = json!({
            "eventName": if old.is_some() { "MODIFY" } else { "INSERT" },
            "dynamodb": {
                "ApproximateCreationDateTime": now.get() / 1_000,
                "Keys": { "PK": { "S": "ENTITY#u" }, "SK": { "S": "#BUCKET#r" } },
                "SequenceNumber": self.writes.to_string(),
                "NewImage": image_of(new),
                "OldImage": old.map(image_of),
            },
        });
        let mut record = record;
        if old.is_none() {
            record["dynamodb"].as_object_mut().unwrap().remove("OldImage");
        }
        let json = record.to_string();
        let record = StreamRecord::from_json(&json).unwrap();
        let Some(deltas) = extract_deltas(&record).expect("it can be counted") else { return };
        let grouped = group_by_window(vec![deltas], &WindowKinds::default());
        let group = &grouped.groups[0];
        let mut attributes = std::collections::HashMap::from([
            ("PK".to_owned(), AttributeValue::S(group.key().pk())),
            ("SK".to_owned(), AttributeValue::S(group.key().sk())),
            ("events".to_owned(), AttributeValue::N("1".to_owned())),
        ]);
        for (limit, by) in group.next_update(None).unwrap().consumed_milli {
            let sum = self.usage.entry(limit.clone()).or_default();
            *sum += by;
            attributes.insert(format!("u_{limit}"), AttributeValue::N(sum.to_string()));
        }
        UsageWindow::from_item(&attributes.into()).expect("the window can be read").unwrap();
    }
}

fn number(item: &Option<Item>, attribute: &str) -> i128 {
    match item.as_ref().and_then(|item| item.inner().get(attribute)) {
        Some(AttributeValue::N(digits)) => digits.parse().unwrap(),
        _ => 0,
    }
}

fn image_of(item: &Item) -> Map<String, Value> {
    let value = |value: &AttributeValue| match value {
        AttributeValue::N(digits) => json!({ "N": digits }),
        AttributeValue::S(text) => json!({ "S": text }),
        other => panic!("{other:?}"),
    };
    item.inner().iter().map(|(name, attribute)| (name.clone(), value(attribute))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn legal_calls_write_what_can_be_read_again(
        rules in [rule(), rule()],
        calls in prop::collection::vec((call(), 0..3_000_i64, any::<bool>()), 1..40),
    ) {
        let [a, b] = rules;
        let configuration = Configuration::explicit(Rules::from([(name("a"), a), (name("b"), b)]));
        let mut table =
            Table { item: None, writes: 0, counted: Sums::new(), usage: Sums::new() };
        let mut now_ms = T0;
        // The second comes now and then: it knows an older image, or none.
        let mut processes = [Lone::seeing(None, at(T0)), Lone::seeing(None, at(T0))];
        for (n, (call, later, is_second)) in (0..).zip(calls) {
            now_ms += later;
            let now = at(now_ms);
            let process = &mut processes[usize::from(is_second)];
            let request = call.request(n, &configuration, now);
            let id = request.id.clone();
            process.queue.enter(request, (), now);
            if matches!(call, Call::Force(_)) {
                process.queue.force(&id);
            }
            let (mut writes, mut refusals) = (0, 0);
            loop {
                match process.step(table.image().as_ref(), now) {
                    Step::Ends(Outcome::Done(_) | Outcome::Refused(_)) => break,
                    Step::Ends(other) => prop_assert!(false, "{:?}: {:?}", call, other),
                    Step::Writes(plan) if table.write(&plan, now) => {
                        process.written(table.image().as_ref(), now);
                    }
                    Step::Writes(_) => {
                        refusals += 1;
                        process.refused(table.image().as_ref(), now);
                    }
                }
                writes += 1;
                // A refused condition hands over the item as it is: no other process came since.
                prop_assert!(refusals <= 1 && writes <= WRITES_MAX, "{:?}", call);
            }
        }
        table.counted.retain(|_, sum| *sum != 0);
        table.usage.retain(|_, sum| *sum != 0);
        prop_assert_eq!(table.usage, table.counted);
    }
}
