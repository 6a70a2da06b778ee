use std::collections::HashMap;

use proptest::prelude::*;
use serde_dynamo::AttributeValue;

use super::*;
use crate::fixtures::{at, bucket, milli, name};
use crate::{CompositeBucket, Refill, StreamRecord, TooManyLimits, extract_deltas};

const T0: i64 = 1_769_608_800_000;
const DAY_MS: i64 = 86_400_000;

fn bucket_id() -> BucketId {
    bucket("user-123", "gpt-4")
}

fn number(value: i64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// The item of one limit as an older producer writes it.
fn item() -> HashMap<String, AttributeValue> {
    let text = |s: &str| AttributeValue::S(s.to_owned());
    let mut item = HashMap::from([
        ("PK".to_owned(), text("ENTITY#user-123")),
        ("SK".to_owned(), text("#BUCKET#gpt-4#rpm")),
        ("entity_id".to_owned(), text("user-123")),
        ("resource".to_owned(), text("gpt-4")),
        ("limit_name".to_owned(), text("rpm")),
        ("GSI2PK".to_owned(), text("RESOURCE#gpt-4")),
        ("GSI2SK".to_owned(), text("BUCKET#user-123#rpm")),
    ]);
    for (name, value) in [
        ("tokens_milli", 99_000),
        ("last_refill_ms", T0),
        ("capacity_milli", 100_000),
        ("burst_milli", 120_000),
        ("refill_amount_milli", 100_000),
        ("refill_period_ms", 60_000),
        ("total_consumed_milli", 1_000),
        ("ttl", 1_769_700_000),
    ] {
        item.insert(name.to_owned(), number(value));
    }
    item
}

fn parsed() -> (LegacyKey, LegacyLimit) {
    LegacyLimit::from_item(&item().into()).unwrap().unwrap()
}

fn of(limits: impl IntoIterator<Item = (&'static str, LegacyLimit)>) -> LegacyBucket {
    let limits = limits.into_iter().map(|(limit, bucket)| (name(limit), bucket)).collect();
    LegacyBucket { bucket: bucket_id(), limits }
}

#[test]
fn an_item_is_read_under_its_full_names() {
    let (key, bucket) = parsed();
    assert_eq!((key.bucket, key.limit), (bucket_id(), name("rpm")));
    let rule = bucket.rule;
    assert_eq!((rule.capacity().get(), rule.burst().get()), (100_000, 120_000));
    assert_eq!((rule.refill().amount().get(), rule.refill().period_ms()), (100_000, 60_000));
    assert_eq!((bucket.tokens.get(), bucket.refilled_at.get()), (99_000, T0));
    assert_eq!(bucket.consumed, Some(milli(1_000)));
    assert_eq!(bucket.expires_at_s, Some(1_769_700_000));
}

#[test]
fn missing_attributes_of_older_items_are_presumed() {
    let mut item = item();
    for absent in ["burst_milli", "total_consumed_milli", "ttl", "limit_name"] {
        item.remove(absent);
    }
    let (_, bucket) = LegacyLimit::from_item(&item.into()).unwrap().unwrap();
    assert_eq!(bucket.rule.burst().get(), 100_000);
    assert_eq!((bucket.consumed, bucket.expires_at_s), (None, None));
}

#[test]
fn broken_items_say_which_attribute_is_broken() {
    for (attribute, value, message) in [
        ("tokens_milli", None, "the item has no tokens_milli"),
        ("last_refill_ms", None, "the item has no last_refill_ms"),
        ("refill_period_ms", None, "the item has no refill_period_ms"),
        (
            "total_consumed_milli",
            Some(AttributeValue::S("7".into())),
            "total_consumed_milli of the item is not an integer",
        ),
        (
            "capacity_milli",
            Some(number(-1)),
            "capacity_milli of the item: capacity in millitokens -1 is out of range: it must lie between 0 and 1000000000000000000",
        ),
        (
            "SK",
            Some(AttributeValue::S("#BUCKET#gpt-4#r p m".into())),
            "limit name \"r p m\" has the character ' ': use ASCII letters, digits, '_', '-' and '.'",
        ),
    ] {
        let mut item = item();
        item.remove(attribute);
        item.extend(value.map(|value| (attribute.to_owned(), value)));
        let error = LegacyLimit::from_item(&item.into()).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let mut composite = item();
    composite.insert("SK".into(), AttributeValue::S("#BUCKET#gpt-4".into()));
    assert_eq!(LegacyLimit::from_item(&composite.into()), Ok(None));
}

#[test]
fn limits_of_different_times_come_to_the_newest() {
    let (_, rpm) = parsed();
    let slow = Refill::new(milli(1_000), DAY_MS).unwrap();
    let day = LegacyLimit {
        rule: Rule::new(milli(10_000), slow).unwrap(),
        tokens: milli(-5_000),
        refilled_at: at(T0 + 30_000),
        consumed: None,
        ..rpm
    };
    let conversion = of([("rpm", rpm), ("rpd", day)]).convert(at(T0 + 60_000)).unwrap();
    let composite = &conversion.composite;
    assert_eq!(composite.refilled_at, at(T0 + 30_000));
    let rpm = composite.limits[&name("rpm")];
    // Half a minute of a hundred a minute, up to the burst.
    assert_eq!((rpm.tokens.get(), rpm.consumed.get()), (120_000, 1_000));
    let rpd = composite.limits[&name("rpd")];
    assert_eq!((rpd.tokens.get(), rpd.consumed.get()), (-5_000, 0));

    let read = CompositeBucket::from_item(&conversion.to_item()).unwrap();
    assert_eq!(read.as_ref(), Some(composite));
    assert_eq!(conversion.to_item().inner()["mg"], number(1));
}

#[test]
fn an_item_goes_only_as_it_was_seen() {
    let (_, rpm) = parsed();
    let uncounted = LegacyLimit { consumed: None, ..rpm };
    let conversion = of([("a", rpm), ("b", uncounted)]).convert(at(T0)).unwrap();
    let seen = |index: usize| -> Vec<_> {
        let conditions = &conversion.removals[index].conditions;
        conditions.iter().map(|condition| (condition.attribute, condition.seen)).collect()
    };
    let both = [("tokens_milli", Some(99_000)), ("last_refill_ms", Some(T0))];
    assert_eq!(seen(0), [both[0], both[1], ("total_consumed_milli", Some(1_000))]);
    assert_eq!(seen(1), [both[0], both[1], ("total_consumed_milli", None)]);
    assert_eq!(conversion.removals[1].key.sk(), "#BUCKET#gpt-4#b");
}

#[test]
fn a_converted_bucket_expires_when_its_items_would_have_or_later() {
    let (_, rpm) = parsed();
    let expires = |buckets: LegacyBucket| buckets.convert(at(T0)).unwrap().composite.expires_at_s;
    let soon = LegacyLimit { expires_at_s: Some(1), ..rpm };
    let never = LegacyLimit { expires_at_s: None, ..rpm };
    assert_eq!(expires(of([("rpm", rpm), ("tpm", soon)])), Some(1_769_700_000));
    assert_eq!(expires(of([("rpm", rpm), ("tpm", never)])), None);
    // A minute, and twice the 72 seconds that a hundred a minute take to fill 120.
    assert_eq!(expires(of([("rpm", soon)])), Some(T0 / 1_000 + 60 + 144));
}

#[test]
fn a_clock_that_was_ahead_gives_nobody_tokens() {
    let (_, rpm) = parsed();
    let ahead = LegacyLimit { refilled_at: at(T0 + DAY_MS), tokens: milli(3), ..rpm };
    let empty = LegacyLimit { tokens: milli(0), ..rpm };
    let converted = of([("rpm", empty), ("tpm", ahead)]).convert(at(T0 + 600)).unwrap().composite;
    assert_eq!(converted.refilled_at, at(T0 + 600));
    assert_eq!(converted.limits[&name("rpm")].tokens.get(), 1_000);
    assert_eq!(converted.limits[&name("tpm")].tokens.get(), 3);

    let seen = of([("rpm", empty), ("tpm", ahead)]).seen(at(T0 + 600)).unwrap();
    assert!(seen.limits == converted.limits && crate::is_refill_time_ahead(&seen, at(T0 + 600)));
    let early = of([("rpm", empty), ("tpm", rpm)]);
    assert_eq!(early.seen(at(T0 + 600)).unwrap(), early.composite(at(T0 + 600)));
}

#[test]
fn a_transaction_has_room_for_99_limits() {
    let (_, rpm) = parsed();
    let limits = |n: usize| (0..n).map(|n| (name(&format!("l{n}")), rpm)).collect();
    let buckets = |n| LegacyBucket { bucket: bucket_id(), limits: limits(n) };
    assert_eq!(buckets(99).convert(at(T0)).unwrap().removals.len(), 99);
    assert_eq!(buckets(100).convert(at(T0)), Err(TooManyLimits { limits: 100 }));
}

/// A stream record in JSON; `images` are those of the item before and after.
fn deltas_of(event: &str, sk: &str, images: &str) -> Vec<(String, i128)> {
    let json = format!(
        r##"{{"eventName":"{event}","dynamodb":{{"ApproximateCreationDateTime":1769608800,
        "Keys":{{"PK":{{"S":"ENTITY#u"}},"SK":{{"S":"{sk}"}}}},
        "SequenceNumber":"300000000000000000000",{images}}}}}"##
    );
    let record = StreamRecord::from_json(&json).unwrap();
    let deltas = extract_deltas(&record).unwrap();
    let deltas = deltas.into_iter().flat_map(|record| record.deltas);
    deltas.map(|delta| (delta.limit.to_string(), delta.consumed_milli)).collect()
}

#[test]
fn only_what_follows_a_conversion_is_metered() {
    let image = |kind: &str, tc: i64| {
        format!(r##""{kind}":{{"mg":{{"N":"1"}},"rf":{{"N":"{T0}"}},"b_rpm_tc":{{"N":"{tc}"}}}}"##)
    };
    let insert = image("NewImage", 7_000);
    assert_eq!(deltas_of("INSERT", "#BUCKET#gpt-4", &insert), []);
    let modify = format!("{},{}", image("OldImage", 7_000), image("NewImage", 9_000));
    assert_eq!(deltas_of("MODIFY", "#BUCKET#gpt-4", &modify), [("rpm".to_owned(), 2_000)]);
}

#[test]
fn legacy_items_are_not_metered() {
    let image = |kind: &str, tc: &str| {
        format!(r##""{kind}":{{"tokens_milli":{{"N":"1"}},"total_consumed_milli":{tc}}}"##)
    };
    let (old, new) = (image("OldImage", r#"{"N":"1"}"#), image("NewImage", r#"{"N":"5"}"#));
    for sk in ["#BUCKET#gpt-4#rpm", "#BUCKET#gpt-4#r p m", "#BUCKET#gpt-4#rpm#x"] {
        assert_eq!(deltas_of("INSERT", sk, &new), []);
        assert_eq!(deltas_of("MODIFY", sk, &format!("{old},{new}")), []);
        assert_eq!(deltas_of("REMOVE", sk, &old), []);
        let broken = image("NewImage", r#"{"S":"?"}"#);
        assert_eq!(deltas_of("MODIFY", sk, &format!("{old},{broken}")), []);
    }
}

fn legacy_bucket() -> impl Strategy<Value = LegacyLimit> {
    let amounts = 0..=10_000_000_000_i64;
    (
        (amounts.clone(), amounts, 1..=DAY_MS),
        (-10_000_000_000..=10_000_000_000_i64, 0..=DAY_MS, proptest::option::of(0..=9_i64)),
    )
        .prop_map(|((burst, amount, period_ms), (tokens, ago, consumed))| {
            let refill = Refill::new(milli(amount), period_ms).unwrap();
            LegacyLimit {
                rule: Rule::new(milli(burst), refill).unwrap(),
                tokens: milli(tokens),
                refilled_at: at(T0 - ago),
                consumed: consumed.map(milli),
                expires_at_s: None,
            }
        })
}

proptest! {
    #[test]
    fn balances_are_worth_at_any_time_what_they_were_worth_before(
        limits in proptest::collection::btree_map("[a-z]{1,5}", legacy_bucket(), 1..6),
        later in 0..=40 * DAY_MS,
    ) {
        let limits = limits.into_iter().map(|(limit, bucket)| (name(&limit), bucket)).collect();
        let legacy = LegacyBucket { bucket: bucket_id(), limits };
        let newest = legacy.limits.values().map(|item| item.refilled_at).max().unwrap();
        let after = legacy.convert(at(T0)).unwrap().composite;
        prop_assert_eq!(after.refilled_at, newest);
        let now = at(newest.get() + later);
        for (limit, before) in &legacy.limits {
            let bucket = after.limits[limit];
            prop_assert_eq!(bucket.rule, before.rule);
            prop_assert_eq!(bucket.consumed, before.consumed.unwrap_or_default().into());
            let worth = bucket.rule.effective(bucket.tokens, after.refilled_at, now);
            // The arithmetic of the older producers: elapsed time by rate, rounded down.
            let refill = before.rule.refill();
            let elapsed = i128::from(now.get() - before.refilled_at.get());
            let gained =
                elapsed * i128::from(refill.amount().get()) / i128::from(refill.period_ms());
            let expected = (i128::from(before.tokens.get()) + gained)
                .min(before.rule.burst().get().into());
            prop_assert!((i128::from(worth.get()) - expected).abs() <= 1, "{worth} {expected}");
            prop_assert_eq!(worth, before.rule.effective(before.tokens, before.refilled_at, now));
        }
    }
}
