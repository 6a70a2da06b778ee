//! Writes entities and stored limits and reads them back.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::TryStreamExt;
use sluicegate::dynamo::{
    ConfigError, ConfigStore, ReadError, Reader, RequestError, Segment, TableSetupError, stream_arn,
};
use sluicegate::types::{EntityRecord, EpochMillis, LimitName, LimitsScope, StoredLimits};
use sluicegate::{EntityId, Limit, Resource};
use sluicegate_testkit::usage::scan;
use sluicegate_testkit::{Fault, Proxy};

use crate::{entity, on_every_engine};

fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

fn scopes() -> [LimitsScope; 4] {
    let (user, resource) = (entity("user-123"), Resource::new("gpt-4").unwrap());
    [
        LimitsScope::EntityResource(user.clone(), resource.clone()),
        LimitsScope::Entity(user),
        LimitsScope::Resource(resource),
        LimitsScope::System,
    ]
}

fn names<const N: usize>(names: [&str; N]) -> [LimitName; N] {
    names.map(|name| LimitName::new(name).unwrap())
}

/// Limits as texts, then the names of tombstones, then the last change.
fn shown(stored: &StoredLimits) -> (Vec<String>, Vec<&str>, i64) {
    let limits = stored.rules.iter().map(|(name, rule)| Limit::from_rule(name, *rule).to_string());
    let deleted = stored.deleted.keys().map(LimitName::as_str);
    (limits.collect(), deleted.collect(), stored.updated_at.get())
}

#[tokio::test]
async fn an_entity_is_what_was_said_last() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = ConfigStore::new(engine.client().clone(), &table);
        let user = entity("user-123");
        assert_eq!(store.get_entity(&user).await.unwrap(), None);

        let child =
            EntityRecord { entity: user.clone(), parent: Some(entity("project-1")), cascade: true };
        store.put_entity(&child).await.unwrap();
        assert_eq!(store.get_entity(&user).await.unwrap().as_ref(), Some(&child));

        let orphan = EntityRecord { parent: None, cascade: false, ..child.clone() };
        store.put_entity(&orphan).await.unwrap();
        assert_eq!(store.get_entity(&user).await.unwrap().as_ref(), Some(&orphan));
        let items = scan(engine.client(), &table).await;
        assert!(!items[0].contains_key("GSI1PK") && !items[0].contains_key("GSI1SK"));

        store.delete_entity(&user).await.unwrap();
        assert_eq!(store.get_entity(&user).await.unwrap(), None);
        store.delete_entity(&user).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn nobody_is_their_own_parent() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = ConfigStore::new(engine.client().clone(), &table);
        let user = entity("user-123");
        let record =
            EntityRecord { entity: user.clone(), parent: Some(user.clone()), cascade: true };
        let error = store.put_entity(&record).await.unwrap_err();
        assert!(matches!(error, ConfigError::OwnParent { entity } if entity == user));
        assert_eq!(scan(engine.client(), &table).await.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn attributes_of_another_producer_stay() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let put = engine.client().put_item().table_name(&table);
        let put = put.item("PK", text("ENTITY#user-123")).item("SK", text("#META"));
        put.item("display_name", text("Ada")).send().await.unwrap();

        let store = ConfigStore::new(engine.client().clone(), &table);
        let record = EntityRecord { entity: entity("user-123"), parent: None, cascade: false };
        store.put_entity(&record).await.unwrap();
        let items = scan(engine.client(), &table).await;
        assert_eq!(items[0]["display_name"], text("Ada"));
    })
    .await;
}

#[tokio::test]
async fn limits_are_set_changed_deleted_and_set_again_at_every_level() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = ConfigStore::new(engine.client().clone(), &table);
        for scope in &scopes() {
            assert_eq!(store.get_limits(scope).await.unwrap(), None);
            assert_eq!(store.delete_limits(scope, &names(["rpm"]), at(1)).await.unwrap(), None);

            let both =
                [Limit::per_minute("rpm", 100), Limit::per_minute("tpm.v2", 5_000).burst(9_000)];
            let stored = store.set_limits(scope, &both, at(1_000)).await.unwrap();
            let tpm = "tpm.v2=5000/min,burst=9000".to_owned();
            assert_eq!(
                shown(&stored),
                (vec!["rpm=100/min".to_owned(), tpm.clone()], vec![], 1_000)
            );
            assert_eq!(store.get_limits(scope).await.unwrap(), Some(stored));

            // Only the named limit changes.
            let rpm = [Limit::per_minute("rpm", 200)];
            let stored = store.set_limits(scope, &rpm, at(2_000)).await.unwrap();
            assert_eq!(
                shown(&stored),
                (vec!["rpm=200/min".to_owned(), tpm.clone()], vec![], 2_000)
            );

            let rpms = names(["rpm", "never-stored"]);
            let stored = store.delete_limits(scope, &rpms, at(3_000)).await.unwrap().unwrap();
            assert_eq!(shown(&stored), (vec![tpm], vec!["rpm"], 3_000));
            // A repetition changes nothing.
            let again = store.delete_limits(scope, &rpms, at(4_000)).await.unwrap();
            assert_eq!(again, Some(stored));

            let tpms = names(["tpm.v2"]);
            let stored = store.delete_limits(scope, &tpms, at(5_000)).await.unwrap().unwrap();
            assert_eq!(shown(&stored), (vec![], vec!["rpm", "tpm.v2"], 5_000));

            let stored = store.set_limits(scope, &rpm, at(6_000)).await.unwrap();
            assert_eq!(shown(&stored), (vec!["rpm=200/min".to_owned()], vec!["tpm.v2"], 6_000));
            assert_eq!(store.get_limits(scope).await.unwrap(), Some(stored));
        }
    })
    .await;
}

/// The time of an item without a counter stands for its version, independently of this clock.
#[tokio::test]
async fn a_counter_goes_on_from_the_time_that_stood_for_it() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let put = engine.client().put_item().table_name(&table);
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let number = |number: i64| AttributeValue::N(number.to_string());
        let put = put.item("PK", text("SYSTEM#")).item("SK", text("#LIMITS"));
        put.item("updated_at", number(10_000)).send().await.unwrap();
        let store = ConfigStore::new(engine.client().clone(), &table);
        let before = store.get_limits(&LimitsScope::System).await.unwrap().unwrap();
        let after = store.set_limits(&LimitsScope::System, &[Limit::per_day("a", 1)], at(5)).await;
        assert_eq!((before.version, after.unwrap().version), (10_000, 10_001));
    })
    .await;
}

#[tokio::test]
async fn every_change_moves_the_version_whatever_the_clock_says() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = ConfigStore::new(engine.client().clone(), &table);
        let limits = [Limit::per_minute("rpm", 1)];
        let mut seen = Vec::new();
        for now in [5_000, 5_000, 10, 5_001] {
            let stored = store.set_limits(&LimitsScope::System, &limits, at(now)).await.unwrap();
            seen.push((stored.updated_at.get(), stored.version));
        }
        let deleted = store.delete_limits(&LimitsScope::System, &names(["rpm"]), at(0)).await;
        let stored = deleted.unwrap().unwrap();
        seen.push((stored.updated_at.get(), stored.version));
        // The first one is the time; from then on it counts.
        let versions = [5_001, 5_002, 5_003, 5_004, 5_005];
        assert!(seen.iter().copied().eq([5_000, 5_000, 10, 5_001, 0].into_iter().zip(versions)));
    })
    .await;
}

#[tokio::test]
async fn changes_at_once_all_happen_one_after_the_other() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = ConfigStore::new(engine.client().clone(), &table);
        let set = async |name: &str| {
            let limits = [Limit::per_minute(name, 1)];
            store.set_limits(&LimitsScope::System, &limits, at(7)).await.unwrap().version
        };
        let (a, b, c) = tokio::join!(set("a"), set("b"), set("c"));
        let mut versions = [a, b, c];
        versions.sort_unstable();
        assert_eq!(versions, [8, 9, 10]);
        let stored = store.get_limits(&LimitsScope::System).await.unwrap().unwrap();
        assert_eq!((stored.rules.len(), stored.version), (3, 10));
    })
    .await;
}

#[tokio::test]
async fn a_limit_that_is_stored_during_a_deletion_of_others_stays() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = ConfigStore::new(engine.client().clone(), &table);
        let scope = LimitsScope::System;
        let both = [Limit::per_day("a", 1), Limit::per_day("b", 1)];
        store.set_limits(&scope, &both, at(1)).await.unwrap();

        let proxy = Proxy::start(engine.endpoint_url()).await;
        proxy.inject(|call| match (call.operation, call.number) {
            ("UpdateItem", 1) => Fault::Delay(Duration::from_millis(300)),
            _ => Fault::None,
        });
        let config = engine.client().config().to_builder().endpoint_url(proxy.endpoint_url());
        let slow = ConfigStore::new(Client::from_conf(config.build()), &table);
        let both = names(["a", "b"]);
        let delete = slow.delete_limits(&scope, &both, at(5));
        let overtake = async {
            while proxy.received("UpdateItem") == 0 {
                tokio::task::yield_now().await;
            }
            store.set_limits(&scope, &[Limit::per_day("c", 1)], at(9)).await.unwrap();
        };
        let (deleted, ()) = tokio::join!(delete, overtake);
        let deleted = deleted.unwrap().unwrap();
        assert_eq!(shown(&deleted), (vec!["c=1/d".to_owned()], vec!["a", "b"], 5));
        assert_eq!((deleted.version, proxy.forwarded("UpdateItem")), (4, 1));
    })
    .await;
}

/// For every operation: an answer without the requested data is no answer.
#[tokio::test]
async fn an_empty_answer_is_no_answer() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        proxy.inject(|_| Fault::Blank("{}"));
        let config = engine.client().config().to_builder().endpoint_url(proxy.endpoint_url());
        let client = Client::from_conf(config.build());
        let store = ConfigStore::new(client.clone(), &table);
        let (user, scope) = (entity("u"), LimitsScope::System);
        let record = EntityRecord { entity: user.clone(), parent: None, cascade: false };
        let limit = [Limit::per_day("a", 1)];
        let resource = Resource::new("r").unwrap();
        let reader = Reader::new(client.clone(), &table);
        let buckets: Result<Vec<_>, _> = reader.buckets_of_resource(&resource).try_collect().await;
        let scanned: Result<Vec<_>, _> =
            reader.legacy_buckets(Segment { number: 0, of: 1 }).try_collect().await;
        let asked = [
            store.put_entity(&record).await.map(drop),
            store.get_entity(&user).await.map(drop),
            store.delete_entity(&user).await,
            store.set_limits(&scope, &limit, at(1)).await.map(drop),
            store.get_limits(&scope).await.map(drop),
            store.delete_limits(&scope, &names(["a"]), at(1)).await.map(drop),
            store.schema_version().await.map(drop),
            store.note_converted().await,
        ];
        for (n, asked) in asked.into_iter().enumerate() {
            let no_answer =
                matches!(asked, Err(ConfigError::Request(RequestError::NoAnswer { .. })));
            assert!(no_answer, "{n}: {asked:?}");
        }
        for read in [buckets.map(drop), scanned.map(drop)] {
            let no_answer = matches!(read, Err(ReadError::Request(RequestError::NoAnswer { .. })));
            assert!(no_answer, "{read:?}");
        }
        let arn = stream_arn(&client, &table).await;
        let no_answer = matches!(arn, Err(TableSetupError::Request(RequestError::NoAnswer { .. })));
        assert!(no_answer, "{arn:?}");
    })
    .await;
}

#[tokio::test]
async fn more_limits_than_a_write_takes_are_refused_at_once_and_deleted_in_parts() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = ConfigStore::new(engine.client().clone(), &table);
        let limits: Vec<_> = (0..51).map(|n| Limit::per_day(format!("{n:064}"), 1)).collect();
        let scope = LimitsScope::System;
        let too_many = store.set_limits(&scope, &limits, at(1)).await.unwrap_err();
        assert!(matches!(too_many, ConfigError::Count { given: 51 }), "{too_many}");
        let none = store.set_limits(&scope, &[], at(1)).await.unwrap_err();
        assert!(matches!(none, ConfigError::Count { given: 0 }), "{none}");
        let twice = [&limits[0], &limits[0]].map(Clone::clone);
        let twice = store.set_limits(&scope, &twice, at(1)).await.unwrap_err();
        assert!(matches!(twice, ConfigError::Repeated { .. }), "{twice}");
        let bad = store.set_limits(&scope, &[Limit::per_day("x", 0)], at(1)).await.unwrap_err();
        assert!(matches!(bad, ConfigError::Limit(_)), "{bad}");
        assert_eq!(store.get_limits(&scope).await.unwrap(), None);

        store.set_limits(&scope, &limits[..50], at(1)).await.unwrap();
        let stored = store.set_limits(&scope, &limits[50..], at(2)).await.unwrap();
        let all: Vec<_> = stored.rules.into_keys().collect();
        let stored = store.delete_limits(&scope, &all, at(3)).await.unwrap().unwrap();
        assert_eq!((stored.rules.len(), stored.deleted.len()), (0, 51));
    })
    .await;
}

#[tokio::test]
async fn a_broken_item_is_named() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let put = engine.client().put_item().table_name(&table);
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let put = put.item("PK", text("SYSTEM#")).item("SK", text("#LIMITS"));
        let put = put.item("updated_at", AttributeValue::N("1".to_owned()));
        put.item("l_y_cp", text("many")).send().await.unwrap();
        let store = ConfigStore::new(engine.client().clone(), &table);
        let limits = [Limit::per_day("x", 1)];
        for error in [
            store.get_limits(&LimitsScope::System).await.unwrap_err(),
            store.set_limits(&LimitsScope::System, &limits, at(1)).await.unwrap_err(),
            store.delete_limits(&LimitsScope::System, &names(["y"]), at(1)).await.unwrap_err(),
        ] {
            let message = error.to_string();
            assert_eq!(message, "the item SYSTEM# / #LIMITS cannot be read; repair or delete it");
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_table_is_told_apart() {
    on_every_engine(async |engine| {
        let store = ConfigStore::new(engine.client().clone(), "sluicegate-missing");
        let user: EntityId = entity("user-123");
        let error = store.get_entity(&user).await.unwrap_err();
        assert!(
            matches!(error, ConfigError::Request(RequestError::MissingTable { .. })),
            "{error:?}"
        );
    })
    .await;
}
