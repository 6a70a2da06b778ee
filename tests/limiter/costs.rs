//! The cost of each operation, as the table itself reports it: indexes included.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use sluicegate::dynamo::DynamoTable;
use sluicegate::request::Cost;
use sluicegate::settings::{CascadeMode, Certainty, StoreSettings};
use sluicegate::types::WritePath;
use sluicegate::{AcquireError, Limit, Limiter, TestClock};
use sluicegate_testkit::{Fault, RunningEngine, engines_under_test};

use crate::support::{Shared, T0, assert_units, at, bucket, limiter, proxied, with_settings};

const ENTITY: &str = "user-0123456789-0123456789-01234";
const PARENT: &str = "team-0123456789-0123456789-01234";
const RESOURCE: &str = "model-0123456789-0123456789-0123";

fn limits(count: usize) -> Vec<Limit> {
    (0..count).map(|n| Limit::per_minute(format!("l{n:02}"), 1_000_000)).collect()
}

/// One token of each limit.
macro_rules! ask {
    ($limiter:expr, $count:expr) => {
        limits($count)
            .into_iter()
            .fold($limiter.acquire(ENTITY, RESOURCE).limits(limits($count)), |request, limit| {
                request.consume(limit.check().unwrap().0.as_str(), 1)
            })
    };
}

fn units(cost: Cost) -> (f64, f64) {
    // moto needs a second attempt for an operation that takes other engines one.
    assert_units!(cost.attempts, 1, "{cost:?}");
    (cost.read_units, cost.write_units)
}

/// Bytes of an item by DynamoDB's rule: names and values, two digits of a number a byte.
fn size(item: &HashMap<String, AttributeValue>) -> usize {
    let value = |value: &AttributeValue| match value {
        AttributeValue::N(digits) => digits.trim_end_matches('0').len().div_ceil(2) + 1,
        AttributeValue::S(text) => text.len(),
        other => panic!("{other:?}"),
    };
    item.iter().map(|(name, attribute)| name.len() + value(attribute)).sum()
}

async fn costs_of(table: &DynamoTable, clock: &TestClock, count: usize, unit: f64) {
    let no_parent = |table: &DynamoTable| -> Limiter { limiter(table.clone(), clock) };
    let first = no_parent(table);
    let permit = ask!(first, count).no_cascade().await.unwrap();
    // The item and, once, its entry in the index of the resource.
    assert_units!(units(permit.cost()), (1.0, unit + 1.0), "first acquire");

    // Warm: after a recent claim, and with a claim of its own.
    let permit = ask!(first, count).no_cascade().await.unwrap();
    assert_eq!(permit.cost().path, Some(WritePath::Unclaimed));
    assert_units!(units(permit.cost()), (0.0, unit), "warm acquire, retry");
    clock.advance(Duration::from_secs(1));
    let permit = ask!(first, count).no_cascade().await.unwrap();
    assert_eq!(permit.cost().path, Some(WritePath::Claim));
    assert_units!(units(permit.cost()), (0.0, unit), "warm acquire, normal");

    assert_units!(permit.adjust("l00", 5).await.unwrap().write_units, unit, "adjust, debit");
    clock.advance(Duration::from_secs(1));
    assert_units!(permit.adjust("l00", 5).await.unwrap().write_units, unit, "adjust, with a claim");
    assert_units!(permit.adjust("l00", -5).await.unwrap().write_units, unit, "adjust, refund");
    assert_units!(permit.release().await.unwrap().write_units, unit, "release");

    let cold = no_parent(table);
    let permit = ask!(cold, count).no_cascade().await.unwrap();
    assert_units!(units(permit.cost()), (1.0, unit), "cold acquire");

    let stored = table.stored(&bucket(ENTITY, RESOURCE)).await.unwrap();
    let bytes = size(&stored.to_item().into());
    println!("{count} limits: {bytes} bytes, {unit} write units");
    assert_eq!(bytes.div_ceil(1_024), if unit > 1.0 { 2 } else { 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_is_one_write_and_no_read() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        // Up to one kilobyte is one unit: with ids of 32 bytes that is up to ten limits with names
        // of three characters.
        for (count, unit) in [(2, 1.0), (5, 1.0), (10, 1.0), (12, 2.0)] {
            let name = engine.create_table().await;
            let table = DynamoTable::new(engine.client(), name);
            costs_of(&table, &TestClock::at(at(T0)), count, unit).await;
        }
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_costs_nothing_or_one_read() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let (proxy, table) = proxied(&engine).await;
        let clock = TestClock::at(at(T0));
        let limiter = limiter(table, &clock);
        let hour = || [Limit::per_hour("rph", 2)];
        let ask =
            || limiter.acquire(ENTITY, RESOURCE).consume("rph", 2).limits(hour()).no_cascade();
        ask().await.unwrap();

        proxy.reset_counts();
        let refused = ask().await.unwrap_err();
        assert!(matches!(refused, AcquireError::LimitExceeded(_)), "{refused}");
        assert!(proxy.received_by_operation().is_empty(), "the image is a moment old");
        clock.advance(Duration::from_millis(1_001));
        let refused = ask().await.unwrap_err();
        assert!(matches!(refused, AcquireError::LimitExceeded(_)), "{refused}");
        assert_eq!(proxy.received_by_operation(), [("GetItem".to_owned(), 1)].into());
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cascade_is_four_units_or_two() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        for (mode, units_of_mode) in
            [(CascadeMode::Transaction, 4.0), (CascadeMode::Compensating, 2.0)]
        {
            for count in [2, 5] {
                let table = DynamoTable::new(engine.client(), engine.create_table().await);
                let clock = TestClock::at(at(T0));
                let settings = StoreSettings { cascade_mode: mode, ..StoreSettings::default() };
                let limiter = with_settings(table, &clock, settings);
                ask!(limiter, count).cascade_to(PARENT).await.unwrap();
                for _ in 0..3 {
                    clock.advance(Duration::from_secs(1));
                    let cost = ask!(limiter, count).cascade_to(PARENT).await.unwrap().cost();
                    assert_units!(
                        (cost.read_units, cost.write_units),
                        (0.0, units_of_mode),
                        "{mode:?}"
                    );
                }
            }
        }
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certainty_costs_twice_and_a_lost_answer_takes_once() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let (proxy, table) = proxied(&engine).await;
        let clock = TestClock::at(at(T0));
        let settings =
            StoreSettings { certainty: Certainty::Transactional, ..StoreSettings::default() };
        let limiter = with_settings(table.clone(), &clock, settings);
        ask!(limiter, 2).no_cascade().await.unwrap();
        proxy.inject(|call| match (call.operation, call.number) {
            ("TransactWriteItems", 2) => Fault::LoseReply,
            _ => Fault::None,
        });
        clock.advance(Duration::from_secs(1));
        let permit = ask!(limiter, 2).no_cascade().await.unwrap();
        assert_eq!(proxy.received("TransactWriteItems"), 3);
        clock.advance(Duration::from_secs(1));
        let lease_after = ask!(limiter, 2).no_cascade().await.unwrap();
        assert_units!(units(lease_after.cost()), (0.0, 2.0));
        assert_units!(lease_after.release().await.unwrap().write_units, 2.0);
        permit.adjust("l00", -1).await.unwrap();
        let stored = table.stored(&bucket(ENTITY, RESOURCE)).await.unwrap();
        let consumed: Vec<_> = stored.limits.values().map(|limit| limit.consumed.get()).collect();
        assert_eq!(consumed, [1_000, 2_000]);
        engine.stop().await;
    }
}
