//! Buckets in the older layout of one item per limit: read as they are, converted by the first
//! write, and never twice or halfway.

use std::time::Duration;

use futures_util::future::join_all;
use sluicegate::dynamo::DynamoTable;
use sluicegate::settings::{CascadeMode, StoreSettings};
use sluicegate::types::EpochMillis;
use sluicegate::{AcquireError, Clock, CompositeStore, LeaseSettings, Limit, Limiter, SystemClock};
use sluicegate_core::keys::LegacyKey;
use sluicegate_core::{CompositeBucket, LIMITS_MAX, LegacyLimit};
use sluicegate_testkit::legacy::{self, consume, key, per_minute};
use sluicegate_testkit::usage::scan;
use sluicegate_testkit::{Fault, RunningEngine};

use crate::support::{DEADLINE, Shared, assert_units, at, bucket, name, patient, proxied};

/// Half a minute ago, so that some refill has come since.
fn then() -> EpochMillis {
    at(SystemClock.now().get() - 30_000)
}

fn limiter(table: &DynamoTable) -> Limiter {
    limiter_as(table, StoreSettings::default())
}

fn limiter_as(table: &DynamoTable, settings: StoreSettings) -> Limiter {
    let table = table.clone().converting_legacy();
    patient(Limiter::builder(CompositeStore::with_settings(table, settings)))
}

async fn place(table: &DynamoTable, items: &[(LegacyKey, LegacyLimit)]) {
    let items = items.iter().map(|(key, bucket)| legacy::item(key, bucket));
    legacy::put(table.client(), table.name(), items).await;
}

/// Two quotas: 500 of 600 are left of one, the other has a debt.
async fn place_quotas(table: &DynamoTable, entity: &str) {
    let quota = |limit: &str, tokens: i64, left_milli: i64| {
        let bucket = per_minute(tokens, left_milli, then());
        let refill =
            sluicegate::types::Refill::new(sluicegate::types::Millitokens::ZERO, 1_000).unwrap();
        let rule = sluicegate::types::Rule::new(bucket.rule.capacity(), refill).unwrap();
        (key(entity, "gpt-4", limit), LegacyLimit { rule, ..bucket })
    };
    place(table, &[quota("rpm", 600, 500_000), quota("tpm", 6_000, -3_000)]).await;
}

async fn left(table: &DynamoTable) -> usize {
    legacy::items(table.client(), table.name()).await.len()
}

/// Balance and counter of a limit.
#[track_caller]
fn figures(stored: &Option<CompositeBucket>, limit: &str) -> (i64, i64) {
    let bucket = stored.as_ref().expect("a composite bucket").limits[&name(limit)];
    (bucket.tokens.get(), i64::try_from(bucket.consumed.get()).unwrap())
}

async fn on_every_engine(suite: impl AsyncFn(&RunningEngine, DynamoTable)) {
    sluicegate_testkit::on_every_engine(async |engine| {
        suite(engine, DynamoTable::new(engine.client(), engine.create_table().await)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_write_converts_and_no_later_one_pays_for_it() {
    on_every_engine(async |_, table| {
        place_quotas(&table, "u").await;
        let limiter = limiter(&table);
        limiter.acquire("u", "gpt-4").consume("rpm", 7).no_cascade().await.unwrap();
        assert_eq!(left(&table).await, 0);
        let stored = table.stored(&bucket("u", "gpt-4")).await;
        assert_eq!(figures(&stored, "rpm"), (493_000, 107_000));
        assert_eq!(figures(&stored, "tpm"), (-3_000, 6_003_000));

        let permit = limiter.acquire("u", "gpt-4").consume("rpm", 1).no_cascade().await.unwrap();
        assert_eq!((permit.cost().attempts, permit.cost().read_units), (1, 0.0));
        let items = scan(table.client(), table.name()).await;
        assert!(items[0].contains_key("mg"), "{items:?}");
        permit.release().await.unwrap();
        assert_eq!(figures(&table.stored(&bucket("u", "gpt-4")).await, "rpm").1, 107_000);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_and_a_refusal_leave_the_items_as_they_are() {
    on_every_engine(async |_, table| {
        place_quotas(&table, "u").await;
        let before = legacy::items(table.client(), table.name()).await;
        let limiter = limiter(&table);
        let seen = limiter.peek("u", "gpt-4").no_cascade().await.unwrap();
        let seen: Vec<_> = seen
            .iter()
            .map(|status| (status.limit.to_string(), status.available.get(), status.consumed.get()))
            .collect();
        let expected = [("rpm", 500_000, 100_000), ("tpm", -3_000, 6_003_000)];
        assert_eq!(seen, expected.map(|(limit, left, used)| (limit.to_owned(), left, used)));
        let refused = limiter.acquire("u", "gpt-4").consume("tpm", 1).no_cascade().await;
        assert!(matches!(refused, Err(AcquireError::LimitExceeded(_))), "{refused:?}");
        assert_eq!(legacy::items(table.client(), table.name()).await, before);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_accrued_since_each_items_own_time_are_there() {
    on_every_engine(async |_, table| {
        let now = SystemClock.now().get();
        // 60 a minute, empty a minute ago and half a minute ago.
        let (long, short) = (at(now - 60_000), at(now - 30_000));
        let items = [
            (key("u", "gpt-4", "long"), per_minute(600, 0, long)),
            (key("u", "gpt-4", "short"), per_minute(600, 0, short)),
        ];
        place(&table, &items).await;
        limiter(&table).acquire("u", "gpt-4").consume("long", 1).no_cascade().await.unwrap();
        let stored = table.stored(&bucket("u", "gpt-4")).await.unwrap();
        let spent = stored.refilled_at.get() - now;
        let tokens = |limit: &str| stored.limits[&name(limit)].tokens.get();
        // Full, less the headroom of a claim; and half full with ten a second since.
        assert!((597_000..=599_000).contains(&tokens("long")), "{stored:?}");
        assert!((tokens("short") - 300_000 - spent * 10).abs() <= 10, "{stored:?} {spent}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refill_time_far_ahead_does_not_refuse_for_ever() {
    on_every_engine(async |_, table| {
        let ahead = at(SystemClock.now().get() + 3_600_000);
        place(&table, &[(key("u", "gpt-4", "rpm"), per_minute(60, 0, ahead))]).await;
        let began = tokio::time::Instant::now();
        // One a second, from the first request on, although no process remembers it.
        let ask = || async {
            limiter(&table).acquire("u", "gpt-4").consume("rpm", 1).no_cascade().await.map(drop)
        };
        while let Err(refused) = ask().await {
            assert!(matches!(refused, AcquireError::LimitExceeded(_)), "{refused:?}");
            assert_eq!(left(&table).await, 0);
            assert!(began.elapsed() < DEADLINE);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn corrections_convert_too() {
    on_every_engine(async |_, table| {
        place_quotas(&table, "u").await;
        let limiter = limiter(&table);
        limiter.adjust("u", "gpt-4").by("rpm", 5).by("tpm", -2).await.unwrap();
        assert_eq!(left(&table).await, 0);
        let stored = table.stored(&bucket("u", "gpt-4")).await;
        assert_eq!(figures(&stored, "rpm"), (495_000, 105_000));
        assert_eq!(figures(&stored, "tpm"), (-1_000, 6_001_000));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_leased_from_what_was_converted() {
    on_every_engine(async |_, table| {
        place_quotas(&table, "u").await;
        let store = CompositeStore::with_table(table.clone().converting_legacy());
        let limiter = patient(Limiter::builder(store).leasing(LeaseSettings::default()));
        for _ in 0..3 {
            limiter.acquire("u", "gpt-4").consume("rpm", 1).no_cascade().await.unwrap();
        }
        limiter.shutdown(DEADLINE).await;
        assert_eq!(left(&table).await, 0);
        let stored = table.stored(&bucket("u", "gpt-4")).await;
        assert_eq!(figures(&stored, "rpm"), (497_000, 103_000));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_and_its_parent_are_both_converted() {
    on_every_engine(async |_, table| {
        for mode in [CascadeMode::Transaction, CascadeMode::Compensating] {
            let settings = StoreSettings { cascade_mode: mode, ..StoreSettings::default() };
            let (child, parent) = (format!("child {mode:?}"), format!("parent {mode:?}"));
            place_quotas(&table, &parent).await;
            let limiter = limiter_as(&table, settings);
            let ask = || limiter.acquire(&child, "gpt-4").consume("rpm", 7).cascade_to(&parent);
            // The child is new, then as old as its parent.
            ask().limits([Limit::quota("rpm", 600)]).await.unwrap();
            let stored = table.stored(&bucket(&parent, "gpt-4")).await;
            assert_eq!(figures(&stored, "rpm"), (493_000, 107_000), "{mode:?}");

            let (child, parent) = (format!("{child} 2"), format!("{parent} 2"));
            place_quotas(&table, &parent).await;
            place_quotas(&table, &child).await;
            let request = limiter.acquire(&child, "gpt-4").consume("rpm", 7);
            request.cascade_to(&parent).await.unwrap();
            for entity in [&child, &parent] {
                let stored = table.stored(&bucket(entity, "gpt-4")).await;
                assert_eq!(figures(&stored, "rpm"), (493_000, 107_000), "{mode:?} {entity}");
            }
        }
        assert_eq!(left(&table).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_an_older_producer_in_between_is_not_lost() {
    on_every_engine(async |engine, _| {
        let (proxy, table) = proxied(engine).await;
        place_quotas(&table, "u").await;
        let limiter = limiter(&table);
        // The first transaction has read the items, and waits before the engine.
        proxy.inject(|call| match (call.operation, call.number) {
            ("TransactWriteItems", 1) => Fault::Delay(Duration::from_secs(2)),
            _ => Fault::None,
        });
        let asked = tokio::spawn(async move {
            limiter.acquire("u", "gpt-4").consume("rpm", 7).no_cascade().await.map(drop)
        });
        while proxy.received("TransactWriteItems") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let client = engine.client();
        assert!(consume(client, table.name(), &key("u", "gpt-4", "rpm"), 50_000).await);
        asked.await.unwrap().unwrap();
        assert_eq!(left(&table).await, 0);
        let stored = table.stored(&bucket("u", "gpt-4")).await;
        assert_eq!(figures(&stored, "rpm"), (443_000, 157_000));
        assert_eq!(proxy.received("TransactWriteItems"), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversion_that_was_not_answered_is_not_done_twice() {
    on_every_engine(async |engine, _| {
        let (proxy, table) = proxied(engine).await;
        for (n, fault) in
            [Fault::LoseReply, Fault::BlankReply("{}"), Fault::Blank("{}")].into_iter().enumerate()
        {
            let entity = format!("u{n}");
            place_quotas(&table, &entity).await;
            proxy.reset_counts();
            proxy.inject(move |call| match (call.operation, call.number) {
                ("TransactWriteItems" | "Query", 1) => fault.clone(),
                _ => Fault::None,
            });
            let limiter = limiter(&table);
            limiter.acquire(&entity, "gpt-4").consume("rpm", 7).no_cascade().await.unwrap();
            let stored = table.stored(&bucket(&entity, "gpt-4")).await;
            assert_eq!(figures(&stored, "rpm"), (493_000, 107_000));
            assert_eq!(limiter.counters().ambiguous.get(), 0);
            assert_eq!(left(&table).await, 0);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_first_writers_convert_once() {
    on_every_engine(async |_, table| {
        place_quotas(&table, "u").await;
        let limiters: Vec<_> = (0..8).map(|_| limiter(&table)).collect();
        let asked = limiters.iter().map(async |limiter| {
            limiter.acquire("u", "gpt-4").consume("rpm", 2).no_cascade().await.map(drop)
        });
        for answer in join_all(asked).await {
            answer.unwrap();
        }
        assert_eq!(left(&table).await, 0);
        let stored = table.stored(&bucket("u", "gpt-4")).await;
        assert_eq!(figures(&stored, "rpm"), (484_000, 116_000));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn later_writes_of_an_older_producer_are_left_alone() {
    on_every_engine(async |_, table| {
        place_quotas(&table, "u").await;
        let limiter = limiter(&table);
        limiter.acquire("u", "gpt-4").consume("rpm", 7).no_cascade().await.unwrap();
        place_quotas(&table, "u").await;
        for limiter in [&limiter, &self::limiter(&table)] {
            limiter.acquire("u", "gpt-4").consume("rpm", 1).no_cascade().await.unwrap();
        }
        assert_eq!(left(&table).await, 2);
        let stored = table.stored(&bucket("u", "gpt-4")).await;
        assert_eq!(figures(&stored, "rpm"), (491_000, 109_000));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_limits_as_a_transaction_holds() {
    on_every_engine(async |_, table| {
        for limits in [LIMITS_MAX, 99] {
            let entity = format!("of {limits}");
            let limit = |n: usize| format!("{n:0>64}");
            let item = |n| (key(&entity, "r", &limit(n)), per_minute(60, 30_000, then()));
            place(&table, &(0..limits).map(item).collect::<Vec<_>>()).await;
            let limiter = limiter(&table);
            for _ in 0..2 {
                let request = limiter.acquire(&entity, "r").consume(limit(limits - 1), 1);
                request.no_cascade().await.unwrap();
            }
            let stored = table.stored(&bucket(&entity, "r")).await.unwrap();
            assert_eq!(stored.limits.len(), limits);
            assert_eq!(stored.limits[&name(&limit(limits - 1))].consumed.get(), 32_000);
        }
        assert_eq!(left(&table).await, 0);

        let item = |n| (key("of 100", "r", &format!("l{n}")), per_minute(60, 30_000, then()));
        place(&table, &(0..100).map(item).collect::<Vec<_>>()).await;
        let refused = limiter(&table).acquire("of 100", "r").consume("l0", 1).no_cascade().await;
        let error = refused.unwrap_err();
        assert!(matches!(error, AcquireError::Setup(_)), "{error:?}");
        assert_eq!(left(&table).await, 100);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_cannot_be_read_is_named_and_nothing_is_written() {
    on_every_engine(async |_, table| {
        place_quotas(&table, "u").await;
        let mut broken = legacy::item(&key("u", "gpt-4", "rpd"), &per_minute(1, 0, then()));
        broken.remove("tokens_milli");
        legacy::put(table.client(), table.name(), [broken]).await;
        let limiter = limiter(&table);
        let request = limiter.acquire("u", "gpt-4").consume("rpm", 1).no_cascade();
        let error = request.await.unwrap_err();
        assert!(matches!(error, AcquireError::Setup(_)), "{error:?}");
        let mut said = String::new();
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = cause {
            said = format!("{said} {error}");
            cause = error.source();
        }
        for part in ["ENTITY#u", "#BUCKET#gpt-4#rpd", "tokens_milli"] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(scan(table.client(), table.name()).await.len(), 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_composite_bucket_costs_nothing_more_and_a_new_one_two_reads() {
    on_every_engine(async |_, table| {
        place_quotas(&table, "old").await;
        let limits = [Limit::quota("rpm", 600)];
        let plain = patient(Limiter::builder(CompositeStore::with_table(table.clone())));
        let cost = async |limiter: &Limiter, entity: &str| {
            let request = limiter.acquire(entity, "gpt-4").consume("rpm", 1).limits(limits.clone());
            let permit = request.no_cascade().await.unwrap();
            permit.cost().read_units
        };
        // One read that finds nothing.
        assert_units!(cost(&plain, "new").await, 1.0);
        // Two more: there are no items either, and they were not converted meanwhile.
        let converting = limiter(&table);
        assert_units!(cost(&converting, "newer").await, 3.0);
        assert!(cost(&converting, "newer").await.abs() < 0.01);
        assert_units!(cost(&limiter(&table), "newer").await, 1.0);
        assert!(cost(&plain, "old").await > 0.0);
        assert_eq!(left(&table).await, 2, "left alone where it is off");
    })
    .await;
}

/// 100 of 600 were used. A budget of 900 a month has as much less.
#[tokio::test(flavor = "multi_thread")]
async fn converted_limit_becomes_one_by_the_calendar() {
    on_every_engine(async |_, table| {
        place_quotas(&table, "u").await;
        let limiter = limiter(&table);
        let ask = async |tokens| {
            let request = limiter.acquire("u", "gpt-4").consume("rpm", tokens).no_cascade();
            request.limits([Limit::per_month("rpm", 900)]).await
        };
        ask(750).await.unwrap();
        assert!(matches!(ask(51).await, Err(AcquireError::LimitExceeded(_))));
        ask(50).await.unwrap();
        let stored = table.stored(&bucket("u", "gpt-4")).await.unwrap();
        let month = Limit::per_month("rpm", 900).check().unwrap().1;
        assert_eq!(stored.limits[&name("rpm")].rule, month);
        assert_eq!((stored.limits[&name("rpm")].tokens.get(), left(&table).await), (0, 0));
    })
    .await;
}
