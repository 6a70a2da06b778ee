//! From the limiter to the stream of the engine, through the processor, to usage windows: they must
//! equal the grants less the amounts given back.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use sluicegate::dynamo::DynamoTable;
use sluicegate::leasing::Accounting;
use sluicegate::{
    AcquireError, CompositeStore, EntityId, LeaseMode, LeaseSettings, Limit, Limiter, Resource,
    TestClock,
};
use sluicegate_core::keys::ItemKey;
use sluicegate_local::InProcess;
use sluicegate_local::poller::{BatchSize, Poller, Settings as PollerSettings};
use sluicegate_processor::{Processor, Settings};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{AtLeastOnce, EngineKind, RunningEngine, engines_under_test};

use crate::support::{T0, at, limiter, patient};

const ENTITIES: u8 = 50;
const PARENTS: u8 = 5;
/// The embedded engine slows down as the stream of a table grows: twice as many take four times as
/// long.
const OPERATIONS_PER_TABLE: usize = 250;

/// Millitokens by entity and limit.
pub(crate) type Sums = BTreeMap<(String, String), i128>;

fn limits() -> [Limit; 2] {
    [Limit::per_minute("rpm", 600), Limit::per_minute("tpm", 60_000)]
}

fn operations() -> usize {
    let asked = std::env::var("SLUICEGATE_TEST_OPERATIONS").ok();
    asked.map_or(500, |asked| asked.parse().expect("a number of operations"))
}

/// Random work on a table; returns the tokens taken less those given back.
async fn work(limiter: &Limiter, clock: &TestClock, seed: u64, operations: usize) -> Sums {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut sums = Sums::new();
    let mut permits = Vec::new();
    for _ in 0..operations {
        clock.advance(Duration::from_millis(rng.u64(..2_000)));
        match rng.u8(..10) {
            0..=5 => {
                let n = rng.u8(..ENTITIES);
                let mut entities = vec![format!("user-{n}")];
                let tpm = rng.i64(1..5_000_000);
                let request = limiter.acquire(&entities[0], "gpt-4").limits(limits());
                let request = request.consume("rpm", 1).consume_milli("tpm", tpm);
                let request = if n.is_multiple_of(3) {
                    entities.push(format!("team-{}", n % PARENTS));
                    request.cascade_to(&entities[1])
                } else {
                    request.no_cascade()
                };
                match request.await {
                    Ok(permit) => {
                        let taken = BTreeMap::from([("rpm", 1_000), ("tpm", tpm)]);
                        note(&mut sums, &entities, &taken, 1);
                        permits.push((permit, entities, taken));
                    }
                    Err(AcquireError::LimitExceeded(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            6..=8 if !permits.is_empty() => {
                let chosen = rng.usize(..permits.len());
                let (permit, entities, taken) = &mut permits[chosen];
                let by = rng.i64(-2_000_000..3_000_000);
                permit.adjust_milli("tpm", by).await.unwrap();
                note(&mut sums, entities, &BTreeMap::from([("tpm", by)]), 1);
                *taken.entry("tpm").or_default() += by;
            }
            _ if !permits.is_empty() => {
                let (permit, entities, taken) = permits.swap_remove(rng.usize(..permits.len()));
                permit.release().await.unwrap();
                note(&mut sums, &entities, &taken, -1);
            }
            _ => {}
        }
    }
    sums
}

fn note(sums: &mut Sums, entities: &[String], amounts: &BTreeMap<&str, i64>, sign: i128) {
    for entity in entities {
        for (limit, amount) in amounts {
            let sum = sums.entry((entity.clone(), (*limit).to_owned())).or_default();
            *sum += sign * i128::from(*amount);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_windows_are_what_was_granted_less_what_was_given_back() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let mut left = operations();
        for seed in 0.. {
            let some = left.min(OPERATIONS_PER_TABLE);
            if some == 0 {
                break;
            }
            left -= some;
            let name = engine.create_table().await;
            let clock = TestClock::at(at(T0));
            let limiter = limiter(DynamoTable::new(engine.client(), &name), &clock);
            let sums = work(&limiter, &clock, seed, some).await;
            check_windows(&engine, &name, sums, seed).await;
        }
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leased_tokens_are_metered_as_they_were_used_once_all_is_settled() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let modes = [
        LeaseMode::Strict(Accounting::AtLease),
        LeaseMode::Strict(Accounting::AtSettle),
        LeaseMode::WriteBehind { threshold: 10_000 },
    ];
    for (seed, mode) in (0..).zip(modes) {
        let name = engine.create_table().await;
        let clock = TestClock::at(at(T0));
        let settings = LeaseSettings { mode, ..LeaseSettings::default() };
        let store = CompositeStore::with_table(DynamoTable::new(engine.client(), &name));
        let limiter = patient(Limiter::builder(store).clock(clock.clone()).leasing(settings));
        let sums = work(&limiter, &clock, seed, OPERATIONS_PER_TABLE).await;
        let report = limiter.shutdown(Duration::from_secs(20)).await;
        assert!(report.unsettled.is_empty(), "{mode:?}: {report:?}");
        check_windows(&engine, &name, sums, seed).await;
    }
    engine.stop().await;
}

/// zae-limiter 0.8.1 counts on a limit that the item lacks without writing the limit's rule. The
/// first acquire here writes it, and keeps that count.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_another_producer_began_keeps_its_count() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let name = engine.create_table().await;
        let limiter = limiter(DynamoTable::new(engine.client(), &name), &TestClock::at(at(T0)));
        let ask = |limit: &str, tokens| {
            let request = limiter.acquire("user-1", "gpt-4").limits(limits());
            request.consume(limit, tokens).no_cascade()
        };
        let only = [Limit::per_minute("rpm", 600)];
        let request = limiter.acquire("user-1", "gpt-4").consume("rpm", 1).limits(only);
        request.no_cascade().await.unwrap();
        let user = EntityId::new("user-1").unwrap();
        let key = ItemKey::Bucket(user, Resource::new("gpt-4").unwrap());
        let number = |milli: i64| AttributeValue::N(milli.to_string());
        let written = engine.client().update_item().table_name(&name);
        let written = written.key("PK", AttributeValue::S(key.pk()));
        let written = written.key("SK", AttributeValue::S(key.sk()));
        let written = written.update_expression("ADD b_tpm_tk :tk, b_tpm_tc :tc");
        let written = written.expression_attribute_values(":tk", number(-5_000));
        written.expression_attribute_values(":tc", number(5_000)).send().await.unwrap();
        ask("tpm", 3).await.unwrap();
        let of = |limit: &str| ("user-1".to_owned(), limit.to_owned());
        let sums = Sums::from([(of("rpm"), 1_000), (of("tpm"), 8_000)]);
        check_windows(&engine, &name, sums, 0).await;
        engine.stop().await;
    }
}

/// Meters the table's stream and compares the windows with the use.
pub(crate) async fn check_windows(engine: &RunningEngine, name: &str, mut sums: Sums, seed: u64) {
    let processor = Processor::new(engine.client().clone(), Settings::new(name));
    let function = InProcess::new(processor, Duration::from_secs(60));
    let settings =
        PollerSettings { batch_size: BatchSize::new(100).unwrap(), ..PollerSettings::default() };
    let delivery = AtLeastOnce::seeded(function, seed);
    let mut poller = Poller::new(engine.stream(name).await, &delivery, settings);
    poller.drain().await.unwrap();
    let usages = read_usages(engine.client(), name).await;
    sums.retain(|_, sum| *sum != 0);
    for kind in ["hour", "day"] {
        let mut found = Sums::new();
        for ((entity, _, _, _), usage) in usages.iter().filter(|(id, _)| id.2 == kind) {
            for (limit, milli) in &usage.consumed_milli {
                *found.entry((entity.clone(), limit.clone())).or_default() += milli;
            }
        }
        found.retain(|_, sum| *sum != 0);
        assert_eq!(found, sums, "{kind} windows, seed {seed}");
    }
    let (delivered, windows) = (delivery.delivered(), usages.len());
    println!("{:?}: {delivered} records delivered, {windows} windows", engine.kind());
}
