//! However large the amounts are and however often they come: what legal calls write can be read
//! again, and its stream records can be counted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_dynamo::{AttributeValue, Item};
use serde_json::{Map, Value, json};
use sluicegate_core::keys::{self, BucketField};
use sluicegate_core::{
    Acquire, Adjust, Adjustment, Amounts, BucketId, Change, ClaimInterval, CompositeBucket,
    Configuration, Decision, EntityId, EpochMillis, Force, LimitName, Millitokens, Refill,
    RefillHint, RequestId, Resource, Rule, Settle, Settlement, StreamRecord, UsageWindow,
    WindowKinds, WritePlan, adjust, decide, extract_deltas, fold, lease, settle,
};

const T0: i64 = 1_769_608_800_000;
const MAX: i64 = Millitokens::MAX.get();

/// Millitokens by limit.
type Sums = BTreeMap<LimitName, i128>;

fn milli(amount: i64) -> Millitokens {
    Millitokens::new(amount).unwrap()
}

fn name(limit: &str) -> LimitName {
    LimitName::new(limit).unwrap()
}

fn magnitude() -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(MAX), 1 => Just(MAX - 1), 1 => Just(MAX / 2), 1 => 1..=MAX, 2 => 1..=9_i64]
}

fn signed() -> impl Strategy<Value = i64> {
    (magnitude(), any::<bool>()).prop_map(|(amount, takes)| if takes { amount } else { -amount })
}

fn rule() -> impl Strategy<Value = Rule> {
    let refill = prop_oneof![Just((0, 1)), Just((MAX, 1)), Just((1, 1_000)), Just((MAX, 1_000))];
    (magnitude(), refill).prop_map(|(burst, (amount, period_ms))| {
        Rule::new(milli(burst), Refill::new(milli(amount), period_ms).unwrap()).unwrap()
    })
}

#[derive(Debug, Clone)]
enum Call {
    Acquire(i64),
    /// Of each of the two limits.
    Adjust([i64; 2], Force),
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
    let force = prop_oneof![Just(Force::No), Just(Force::Yes)];
    prop_oneof![
        1 => magnitude().prop_map(Call::Acquire),
        3 => ([signed(), signed()], force).prop_map(|(by, force)| Call::Adjust(by, force)),
        1 => (magnitude(), signed()).prop_map(|(returned, counted)| Call::Settle { returned, counted }),
        1 => (magnitude(), magnitude(), signed()).prop_map(|(amount, returned, counted)| {
            Call::Lease { amount, returned, counted }
        }),
    ]
}

/// A bucket as a table has it, which adds without bounds.
struct Table {
    bucket: BucketId,
    configuration: Configuration,
    item: Option<Item>,
    /// What a writer last saw of it.
    seen: Option<CompositeBucket>,
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

    fn plan(
        &self,
        call: &Call,
        image: Option<&CompositeBucket>,
        now: EpochMillis,
    ) -> Option<WritePlan> {
        let amounts = |milli_a: i64, milli_b: i64| -> Amounts {
            [(name("a"), milli(milli_a)), (name("b"), milli(milli_b))].into()
        };
        let one = |amount| Amounts::from([(name("a"), milli(amount))]);
        let id = &RequestId::from_bits(self.writes);
        let Self { bucket, configuration, .. } = self;
        let interval = ClaimInterval::default();
        let hint = RefillHint::TrustImage;
        let acquire = |amounts| Acquire { bucket, amounts, configuration, id, interval, hint };
        let of_decision = |decision| match decision {
            Decision::Write(plan) | Decision::Repair(plan) => Some(plan),
            _ => None,
        };
        let of_adjustment = |adjustment| match adjustment {
            Adjustment::Write { plan, .. } => Some(plan),
            _ => None,
        };
        match *call {
            Call::Acquire(amount) => of_decision(decide(image, acquire(&one(amount)), now)),
            Call::Adjust([a, b], force) => {
                let amounts = &amounts(a, b);
                let adjusting =
                    Adjust { bucket, amounts, configuration, id, interval, hint, force };
                of_adjustment(adjust(image, adjusting, now))
            }
            Call::Settle { returned, counted } => {
                let settlement =
                    &Settlement { returned: one(returned), counted: amounts(counted, counted) };
                of_adjustment(settle(image, Settle { bucket, settlement, configuration, id }, now))
            }
            Call::Lease { amount, returned, counted } => {
                let settlement = Settlement { returned: one(returned), counted: one(counted) };
                of_decision(lease(image, acquire(&one(amount)), &settlement, now))
            }
        }
    }

    /// One write; whether its conditions held.
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
        let folded = fold(vec![deltas], &WindowKinds::default());
        let window = &folded.windows[0];
        let mut attributes = std::collections::HashMap::from([
            ("PK".to_owned(), AttributeValue::S(window.key().pk())),
            ("SK".to_owned(), AttributeValue::S(window.key().sk())),
            ("events".to_owned(), AttributeValue::N("1".to_owned())),
        ]);
        for (limit, by) in window.after(None).unwrap().consumed_milli {
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
        let mut table = Table {
            bucket: BucketId {
                entity: EntityId::new("u").unwrap(),
                resource: Resource::new("r").unwrap(),
            },
            configuration: Configuration::explicit([(name("a"), a), (name("b"), b)].into()),
            item: None,
            seen: None,
            writes: 0,
            counted: Sums::new(),
            usage: Sums::new(),
        };
        let mut now = T0;
        for (call, later, is_stale) in calls {
            now += later;
            let at = EpochMillis::new(now).unwrap();
            let current = table.image();
            let seen = if is_stale { table.seen.take() } else { current.clone() };
            let is_written = |table: &mut Table, image: Option<&CompositeBucket>| {
                table.plan(&call, image, at).is_none_or(|plan| table.write(&plan, at))
            };
            // A refused condition hands over the item as it is: nobody came between then.
            if !is_written(&mut table, seen.as_ref()) {
                prop_assert!(is_written(&mut table, current.as_ref()), "{:?}", call);
            }
            table.seen = if is_stale { current } else { table.image() };
        }
        table.counted.retain(|_, sum| *sum != 0);
        table.usage.retain(|_, sum| *sum != 0);
        prop_assert_eq!(table.usage, table.counted);
    }
}
