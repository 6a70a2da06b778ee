//! Reads ranges of items, in pages of every size.

use std::num::NonZeroU16;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::{Stream, TryStreamExt};
use sluicegate::dynamo::{ConfigStore, Lasts, ReadError, Reader, RequestError};
use sluicegate::types::{
    CompositeBucket, EntityRecord, EpochMillis, UsageWindow, WindowKind, WindowSpan,
};
use sluicegate::{DynamoStore, Limit, Limiter, Resource, TestClock};
use sluicegate_core::keys::ItemKey;
use sluicegate_testkit::LeaveOut;

use crate::{entity, on_every_engine};

/// 2026-01-28T14:00:00Z.
const T0: i64 = 1_769_608_800_000;
const HOUR_MS: i64 = 3_600_000;
/// Pages of one item, of a few, and of all.
const PAGE_SIZES: [u16; 3] = [1, 3, 1_000];

fn resource(name: &str) -> Resource {
    Resource::new(name).unwrap()
}

fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

fn hours(from: i64, to: i64) -> WindowSpan {
    WindowSpan { kind: WindowKind::Hour, starts: at(T0 + from * HOUR_MS)..at(T0 + to * HOUR_MS) }
}

fn readers(client: &Client, table: &str) -> [Reader; 3] {
    PAGE_SIZES
        .map(|items| Reader::new(client.clone(), table).page_size(NonZeroU16::new(items).unwrap()))
}

async fn all<T>(stream: impl Stream<Item = Result<T, ReadError>>) -> Vec<T> {
    stream.try_collect().await.unwrap()
}

async fn put(client: &Client, table: &str, key: &ItemKey, figures: &[(&str, i64)]) {
    let text = |text: String| AttributeValue::S(text);
    let mut put = client.put_item().table_name(table);
    put = put.item("PK", text(key.pk())).item("SK", text(key.sk()));
    if let Some((pk, sk)) = key.gsi2_keys() {
        put = put.item("GSI2PK", text(pk)).item("GSI2SK", text(sk));
    }
    for (name, value) in figures {
        put = put.item(*name, AttributeValue::N(value.to_string()));
    }
    put.send().await.unwrap();
}

/// Two entities on two resources, over six hours and their days, and their buckets.
async fn populate(client: &Client, table: &str) {
    for (number, (user, model)) in
        [("a", "gpt-4"), ("a", "search"), ("b", "gpt-4")].into_iter().enumerate()
    {
        let (user, model) = (entity(user), resource(model));
        let base = i64::try_from(number).unwrap() * 100;
        for hour in 0..6 {
            let start = at(T0 + hour * HOUR_MS);
            let figures = [("u_rpm", base + hour), ("events", 1)];
            for kind in [WindowKind::Hour, WindowKind::DAY] {
                let key = ItemKey::Usage(user.clone(), model.clone(), kind.containing(start));
                put(client, table, &key, &figures).await;
            }
        }
        let figures = [("rf", T0), ("b_rpm_cp", 5), ("b_rpm_ra", 5), ("b_rpm_rp", 1)];
        let counters = [("b_rpm_tk", base), ("b_rpm_tc", base)];
        let bucket = ItemKey::Bucket(user, model);
        put(client, table, &bucket, &[&figures[..], &counters[..]].concat()).await;
    }
}

/// Entity, resource and figure of each window.
fn shown(windows: &[UsageWindow]) -> Vec<(&str, &str, i128)> {
    let figure = |window: &UsageWindow| window.consumed_milli.values().sum();
    windows.iter().map(|w| (w.entity.as_str(), w.resource.as_str(), figure(w))).collect()
}

#[tokio::test]
async fn usage_of_an_entity_and_a_resource_from_the_start_to_before_the_end() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        populate(engine.client(), &table).await;
        let (user, model) = (entity("a"), resource("gpt-4"));
        for reader in readers(engine.client(), &table) {
            let windows = all(reader.usage(&user, &model, &hours(1, 4))).await;
            let figures = [("a", "gpt-4", 1), ("a", "gpt-4", 2), ("a", "gpt-4", 3)];
            assert_eq!(shown(&windows), figures);
            assert_eq!(all(reader.usage(&user, &model, &hours(4, 4))).await, []);
            assert_eq!(all(reader.usage(&user, &model, &hours(5, 4))).await, []);
            assert_eq!(all(reader.usage(&user, &resource("other"), &hours(0, 6))).await, []);
            let days = WindowSpan { kind: WindowKind::DAY, ..hours(-14, 1) };
            assert_eq!(shown(&all(reader.usage(&user, &model, &days)).await), [("a", "gpt-4", 5)]);
        }
    })
    .await;
}

#[tokio::test]
async fn usage_of_an_entity_on_all_resources() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        populate(engine.client(), &table).await;
        for reader in readers(engine.client(), &table) {
            let windows = all(reader.usage_of_entity(&entity("a"), &hours(4, 6))).await;
            assert_eq!(
                shown(&windows),
                [("a", "gpt-4", 4), ("a", "gpt-4", 5), ("a", "search", 104), ("a", "search", 105)]
            );
            assert_eq!(all(reader.usage_of_entity(&entity("a"), &hours(6, 6))).await, []);
        }
    })
    .await;
}

#[tokio::test]
async fn usage_of_a_resource_over_all_entities() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        populate(engine.client(), &table).await;
        for reader in readers(engine.client(), &table) {
            let windows = all(reader.usage_of_resource(&resource("gpt-4"), &hours(2, 4))).await;
            let figures =
                [("a", "gpt-4", 2), ("b", "gpt-4", 202), ("a", "gpt-4", 3), ("b", "gpt-4", 203)];
            assert_eq!(shown(&windows), figures);
            assert_eq!(all(reader.usage_of_resource(&resource("x"), &hours(2, 4))).await, []);
        }
    })
    .await;
}

#[tokio::test]
async fn usage_at_keys_that_need_two_reads() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        populate(engine.client(), &table).await;
        let key = |hour: i64| {
            let window = WindowKind::Hour.containing(at(T0 + hour * HOUR_MS));
            ItemKey::Usage(entity("a"), resource("gpt-4"), window)
        };
        let keys: Vec<_> = [4].into_iter().chain(100..200).chain([5, 1]).map(key).collect();
        let reader = Reader::new(engine.client().clone(), &table);
        let windows = reader.usage_at(&keys).await.unwrap();
        assert_eq!(shown(&windows), [("a", "gpt-4", 4), ("a", "gpt-4", 5), ("a", "gpt-4", 1)]);
        let missing = Reader::new(engine.client().clone(), "sluicegate-missing");
        assert!(missing.usage_at(&keys).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn resources_with_usage_in_a_span() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        populate(engine.client(), &table).await;
        let late = WindowKind::Hour.containing(at(T0 + 9 * HOUR_MS));
        let key = ItemKey::Usage(entity("a"), resource("late"), late);
        put(engine.client(), &table, &key, &[("u_rpm", 1), ("events", 1)]).await;
        for reader in readers(engine.client(), &table) {
            let found = async |span: WindowSpan| {
                let mut found = all(reader.resources_with_usage(&span)).await;
                found.sort();
                found.dedup();
                found.iter().map(ToString::to_string).collect::<Vec<_>>()
            };
            assert_eq!(found(hours(0, 6)).await, ["gpt-4", "search"]);
            assert_eq!(found(hours(0, 10)).await, ["gpt-4", "late", "search"]);
            assert_eq!(found(hours(6, 9)).await, [""; 0]);
            assert_eq!(found(hours(4, 4)).await, [""; 0]);
        }
    })
    .await;
}

fn entities(buckets: &[CompositeBucket]) -> Vec<&str> {
    buckets.iter().map(|bucket| bucket.entity.as_str()).collect()
}

#[tokio::test]
async fn buckets_of_a_resource_and_of_an_entity() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        populate(engine.client(), &table).await;
        for reader in readers(engine.client(), &table) {
            let buckets = all(reader.buckets_of_resource(&resource("gpt-4"))).await;
            assert_eq!(entities(&buckets), ["a", "b"]);
            assert!(buckets.iter().all(|bucket| bucket.resource == resource("gpt-4")));
            let buckets = all(reader.buckets_of_entity(&entity("a"))).await;
            assert_eq!(entities(&buckets), vec!["a"; buckets.len()]);
            assert!(buckets.iter().any(|bucket| bucket.resource == resource("gpt-4")));
        }
    })
    .await;
}

#[tokio::test]
async fn children_of_a_parent() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let store = ConfigStore::new(engine.client().clone(), &table);
        for (child, parent) in [("c", "p"), ("a", "p"), ("b", "p"), ("d", "q"), ("e", "")] {
            let parent = (!parent.is_empty()).then(|| entity(parent));
            let record = EntityRecord { entity: entity(child), parent, cascade: true };
            store.put_entity(&record).await.unwrap();
        }
        for reader in readers(engine.client(), &table) {
            let children = all(reader.children(&entity("p"))).await;
            assert_eq!(children, ["a", "b", "c"].map(entity));
            assert_eq!(all(reader.children(&entity("a"))).await, []);
        }
    })
    .await;
}

#[tokio::test]
async fn a_broken_item_is_an_error_in_its_place_and_the_stream_goes_on() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        populate(engine.client(), &table).await;
        let window = WindowKind::Hour.containing(at(T0 + HOUR_MS));
        let key = ItemKey::Usage(entity("a"), resource("gpt-4"), window);
        put(engine.client(), &table, &key, &[("u_rpm", 1)]).await;
        for reader in readers(engine.client(), &table) {
            let stream = reader.usage_of_resource(&resource("gpt-4"), &hours(1, 2));
            let mut stream = std::pin::pin!(stream);
            let ReadError::Item(broken) = stream.try_next().await.unwrap_err() else { panic!() };
            assert_eq!((broken.pk, broken.sk), (key.pk(), key.sk()));
            assert_eq!(broken.source.to_string(), "the item has no events");
            assert_eq!(stream.try_next().await.unwrap().unwrap().entity, entity("b"));
            assert_eq!(stream.try_next().await.unwrap(), None);
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_table_ends_the_stream() {
    on_every_engine(async |engine| {
        let reader = Reader::new(engine.client().clone(), "sluicegate-missing");
        let mut stream = std::pin::pin!(reader.children(&entity("p")));
        let error = stream.try_next().await.unwrap_err();
        assert!(
            matches!(error, ReadError::Request(RequestError::MissingTable { .. })),
            "{error:?}"
        );
        assert_eq!(stream.try_next().await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn keys_left_out_of_an_answer_are_read_again() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        populate(engine.client(), &table).await;
        let (model, span) = (resource("gpt-4"), hours(0, 6));
        let whole = Reader::new(engine.client().clone(), &table);
        let whole = all(whole.usage_of_resource(&model, &span)).await;
        assert_eq!(whole.len(), 12);
        for reader in readers(&LeaveOut::beyond(1).client(engine.client()), &table) {
            assert_eq!(all(reader.usage_of_resource(&model, &span)).await, whole);
        }
    })
    .await;
}

#[tokio::test]
async fn keys_left_out_every_time_are_an_error() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        populate(engine.client(), &table).await;
        let reader = Reader::new(LeaveOut::beyond(0).client(engine.client()), &table);
        let buckets = reader.buckets_of_resource(&resource("gpt-4"));
        let error = buckets.try_collect::<Vec<_>>().await.unwrap_err();
        assert!(matches!(error, ReadError::LeftOut { items: 2, .. }), "{error:?}");
    })
    .await;
}

/// 100 tokens a day, asked at half past midnight; since long, and since six days.
#[tokio::test]
async fn the_pace_of_a_budget_is_that_of_whole_windows() {
    on_every_engine(async |engine| {
        for first in [8, 6] {
            let (client, table) = (engine.client(), engine.create_table().await);
            let today = T0 - 14 * HOUR_MS;
            for days_ago in 0..=first {
                let window = WindowKind::DAY.containing(at(today - days_ago * 24 * HOUR_MS));
                let milli = if days_ago == 0 { 2_083 } else { 100_000 };
                let key = ItemKey::Usage(entity("u"), resource("r"), window);
                put(client, &table, &key, &[("events", 1), ("u_rpm", milli)]).await;
            }
            let now = at(today + HOUR_MS / 2);
            let clock = TestClock::at(now);
            let limiter = Limiter::builder(DynamoStore::new(client.clone(), &table)).clock(clock);
            let limiter = limiter.build();
            let request = limiter.acquire("u", "r").consume("rpm", 1);
            let limits = [Limit::per_month("rpm", 200)];
            let status = request.limits(limits).peek().await.unwrap().remove(0);
            let reader = Reader::new(client.clone(), &table);
            let budget = async || reader.budget(&resource("r"), &status, now).await.unwrap();
            let whole = budget().await;
            let Lasts::Until { milli_per_day, .. } = whole.lasts else { panic!("{whole:?}") };
            assert!((99_900..=100_100).contains(&milli_per_day), "{milli_per_day}");
            let today = WindowKind::DAY.containing(at(today));
            let key = ItemKey::Usage(entity("u"), resource("r"), today);
            put(client, &table, &key, &[("u_rpm", 1)]).await;
            let part = budget().await;
            assert_eq!((part.used_milli, part.lasts), (None, Lasts::Unknown));
            assert_eq!(part.broken_windows, 1);
        }
    })
    .await;
}
