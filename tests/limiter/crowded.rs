//! Buckets with as many limits as they can have, and requests that bring one more.

use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::error::InvalidRequest;
use sluicegate::settings::{CascadeMode, StoreSettings};
use sluicegate::types::{LIMITS_MAX, LimitsScope, WritePath};
use sluicegate::{
    AcquireError, AcquireRequest, CompositeStore, EntityId, LeaseSettings, Limit, Limiter,
    TestClock,
};
use sluicegate_testkit::{RunningEngine, engines_under_test};

use crate::support::{
    Engine, Shared, T0, at, bucket, limiter, name as limit_name, on_every_store, on_every_table,
    patient, with_settings,
};

/// As long as a limit's name can be.
fn name(n: usize) -> String {
    format!("{n:0>64}")
}

fn limits(of: std::ops::Range<usize>) -> impl Iterator<Item = Limit> {
    of.map(|n| Limit::per_minute(name(n), 60))
}

/// Asks for 1 of every limit that there can be.
fn all<L>(request: AcquireRequest<L>) -> AcquireRequest<L> {
    let request = request.limits(limits(0..LIMITS_MAX));
    (0..LIMITS_MAX).fold(request, |request, n| request.consume(name(n), 1))
}

async fn consumed<T: Shared>(table: &T, entity: &str) -> Vec<i128> {
    let stored = table.stored(&bucket(entity, "r")).await.unwrap();
    stored.limits.values().map(|limit| limit.consumed.get() / 1_000).collect()
}

async fn the_largest_requests<T: Shared>(table: T) {
    for mode in [CascadeMode::Transaction, CascadeMode::Compensating] {
        let clock = TestClock::at(at(T0));
        let settings = StoreSettings { cascade_mode: mode, ..StoreSettings::default() };
        let limiter = with_settings(table.clone(), &clock, settings);
        let (child, parent) = (format!("child {mode:?}"), format!("parent {mode:?}"));
        let steps = [(0, WritePath::Create), (50, WritePath::Unclaimed), (2_000, WritePath::Claim)];
        for (taken, (later, path)) in (1..).zip(steps) {
            clock.advance(Duration::from_millis(later));
            let permit = all(limiter.acquire(&child, "r")).cascade_to(&parent).await.unwrap();
            assert_eq!(permit.cost().path, Some(path), "{mode:?}");
            for entity in [&child, &parent] {
                assert_eq!(consumed(&table, entity).await, [taken; LIMITS_MAX], "{entity}");
            }
        }
        let permit = all(limiter.acquire(&child, "r")).cascade_to(&parent).await.unwrap();
        permit.adjust(name(0), 1).await.unwrap();
        clock.advance(Duration::from_secs(2));
        permit.adjust(name(0), 1).await.unwrap();
        permit.release().await.unwrap();
        for entity in [&child, &parent] {
            assert_eq!(consumed(&table, entity).await, [3; LIMITS_MAX], "{entity}");
        }
        let alone = all(limiter.acquire("alone", "r")).no_cascade().await.unwrap();
        alone.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_requests_are_granted() {
    on_every_table!(the_largest_requests);
}

#[track_caller]
fn full<T: std::fmt::Debug>(result: Result<T, AcquireError>) -> (String, String) {
    match result {
        Err(AcquireError::InvalidRequest(InvalidRequest::BucketFull { entity, limit, max })) => {
            assert_eq!(max, LIMITS_MAX);
            (entity.to_string(), limit.to_string())
        }
        other => panic!("{other:?}"),
    }
}

async fn ever_other_limits<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let (warm, cold) = (limiter(table.clone(), &clock), || limiter(table.clone(), &clock));
    for n in 0..LIMITS_MAX {
        clock.advance(Duration::from_secs(1));
        let request = warm.acquire("u", "r").consume(name(n), 1).limits(limits(n..n + 1));
        request.no_cascade().await.unwrap();
    }
    let before = table.image(&bucket("u", "r")).await;
    for n in LIMITS_MAX..LIMITS_MAX + 3 {
        clock.advance(Duration::from_secs(1));
        for limiter in [&warm, &cold()] {
            let request = limiter.acquire("u", "r").consume(name(n), 1).limits(limits(n..n + 1));
            assert_eq!(full(request.no_cascade().await), ("u".to_owned(), name(n)));
        }
    }
    assert_eq!(table.image(&bucket("u", "r")).await, before);

    // Its own limits can be acquired, whatever else the request names.
    for limiter in [&warm, &cold()] {
        clock.advance(Duration::from_secs(1));
        let request = limiter.acquire("u", "r").consume(name(7), 1);
        request.limits(limits(7..7 + LIMITS_MAX)).no_cascade().await.unwrap();
    }
    let after = table.image(&bucket("u", "r")).await.unwrap();
    assert!(after.limits.keys().eq(before.unwrap().limits.keys()));
    assert_eq!(after.limits[&limit_name(&name(7))].consumed.get(), 3_000);

    // A full parent refuses, and takes nothing from its child.
    for mode in [CascadeMode::Transaction, CascadeMode::Compensating] {
        let settings = StoreSettings { cascade_mode: mode, ..StoreSettings::default() };
        let limiter = with_settings(table.clone(), &clock, settings);
        let child = format!("child {mode:?}");
        let request = limiter.acquire(&child, "r").consume(name(99), 1).limits(limits(99..100));
        assert_eq!(full(request.cascade_to("u").await), ("u".to_owned(), name(99)));
        let left = table.image(&bucket(&child, "r")).await;
        assert!(left.is_none_or(|left| left.limits[&limit_name(&name(99))].consumed.get() == 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ever_other_limits_end_at_a_full_bucket_that_works_on() {
    on_every_store!(ever_other_limits);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_are_deleted_make_room() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = DynamoTable::new(engine.client(), engine.create_table().await);
        let clock = TestClock::at(at(T0));
        let limiter = limiter(table.clone(), &clock);
        let ask = async |n: usize| {
            clock.advance(Duration::from_secs(1));
            let request = limiter.acquire("u", "r").consume(name(n), 1).limits(limits(n..n + 1));
            request.no_cascade().await
        };
        for n in 0..LIMITS_MAX {
            ask(n).await.unwrap();
        }
        full(ask(LIMITS_MAX).await);

        let scope = LimitsScope::Entity(EntityId::new("u").unwrap());
        let unused: Vec<_> = limits(0..3).collect();
        limiter.set_limits(&scope, &unused).await.unwrap();
        let unused: Vec<_> = (0..3).map(|n| limit_name(&name(n))).collect();
        limiter.delete_limits(&scope, &unused).await.unwrap();
        // The first one is a lease of another process, which has not read them.
        let store = CompositeStore::with_table(table.clone());
        let builder = Limiter::builder(store).clock(clock.clone());
        let leasing = patient(builder.leasing(LeaseSettings::default()));
        let first = leasing.acquire("u", "r").consume(name(LIMITS_MAX), 1);
        first.limits(limits(LIMITS_MAX..LIMITS_MAX + 1)).no_cascade().await.unwrap();
        for n in LIMITS_MAX + 1..LIMITS_MAX + 3 {
            ask(n).await.unwrap();
        }
        full(ask(LIMITS_MAX + 3).await);
        let stored = table.stored(&bucket("u", "r")).await.unwrap();
        let expected = (3..LIMITS_MAX + 3).map(|n| limit_name(&name(n)));
        assert!(stored.limits.into_keys().eq(expected));
        engine.stop().await;
    }
}
