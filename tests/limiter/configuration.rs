//! Limits that are stored in the table, and buckets that follow them.

use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::error::InvalidRequest;
use sluicegate::types::{EntityRecord, LimitsScope};
use sluicegate::{AcquireError, DynamoStore, LeaseSettings, Limit, Limiter, TestClock};
use sluicegate_core::ConfigStamp;
use sluicegate_testkit::{EngineKind, RunningEngine, engines_under_test};

use crate::support::{
    DEADLINE, Shared, T0, assert_units, at, bucket, limiter, name, patient, proxied,
};

async fn on_every_engine(suite: impl AsyncFn(DynamoTable, TestClock, bool)) {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = DynamoTable::new(engine.client(), engine.create_table().await);
        // MiniStack does not report the cost of a BatchGetItem.
        let counts_reads = *engine.kind() == EngineKind::Embedded;
        suite(table, TestClock::at(at(T0)), counts_reads).await;
        engine.stop().await;
    }
}

fn scopes() -> [LimitsScope; 4] {
    let id = bucket("u", "r");
    [
        LimitsScope::EntityResource(id.entity.clone(), id.resource.clone()),
        LimitsScope::Entity(id.entity),
        LimitsScope::Resource(id.resource),
        LimitsScope::System,
    ]
}

/// The bursts of a bucket's limits, in tokens.
async fn bursts(limiter: &Limiter) -> Vec<(String, i64)> {
    let limits = limiter.peek("u", "r").await.unwrap();
    limits.iter().map(|l| (l.limit.to_string(), l.rule.burst().get() / 1_000)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_comes_from_the_narrowest_scope_that_names_it() {
    on_every_engine(async |table, clock, _| {
        let limiter: Limiter = limiter(table, &clock);
        let [personal, entity, resource, system] = scopes();
        limiter.set_limits(&system, &[Limit::per_minute("rpm", 1), Limit::per_minute("tpm", 1)]).await.unwrap();
        limiter.set_limits(&resource, &[Limit::per_minute("rpm", 2), Limit::per_minute("rpd", 2)]).await.unwrap();
        limiter.set_limits(&entity, &[Limit::per_minute("rpm", 3)]).await.unwrap();
        let of = |limits: &[(&str, i64)]| -> Vec<(String, i64)> {
            limits.iter().map(|(limit, burst)| ((*limit).to_owned(), *burst)).collect()
        };
        assert_eq!(bursts(&limiter).await, of(&[("rpd", 2), ("rpm", 3), ("tpm", 1)]));
        limiter.set_limits(&personal, &[Limit::per_minute("rpm", 4)]).await.unwrap();
        assert_eq!(bursts(&limiter).await, of(&[("rpd", 2), ("rpm", 4), ("tpm", 1)]));
        limiter.delete_limits(&personal, &[name("rpm")]).await.unwrap();
        assert_eq!(bursts(&limiter).await, of(&[("rpd", 2), ("rpm", 3), ("tpm", 1)]));

        // A bucket with limits of its entity's own never expires.
        limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
        let stored = limiter.store::<DynamoStore>().unwrap().table().stored(&bucket("u", "r")).await.unwrap();
        assert_eq!((stored.limits.len(), stored.expires_at_s), (3, None));
        let unknown = limiter.acquire("u", "r").consume("typo", 1).await.unwrap_err();
        assert!(
            matches!(&unknown, AcquireError::InvalidRequest(InvalidRequest::UnknownLimit(limit)) if *limit == name("typo")),
            "{unknown}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_follows_changes_and_a_process_behind_adopts_them() {
    on_every_engine(async |table, clock, counts_reads| {
        let (ahead, behind): (Limiter, Limiter) =
            (limiter(table.clone(), &clock), limiter(table.clone(), &clock));
        let [.., system] = scopes();
        ahead
            .set_limits(&system, &[Limit::per_minute("rpm", 60), Limit::per_minute("old", 5)])
            .await
            .unwrap();
        for limiter in [&ahead, &behind] {
            limiter.acquire("u", "r").consume("rpm", 10).await.unwrap();
        }
        let stored = async || table.stored(&bucket("u", "r")).await.unwrap();
        assert_eq!(stored().await.limits[&name("rpm")].tokens.get(), 40_000);

        clock.advance(Duration::from_secs(2));
        ahead
            .set_limits(&system, &[Limit::per_minute("rpm", 600), Limit::per_minute("new", 9)])
            .await
            .unwrap();
        ahead.delete_limits(&system, &[name("old")]).await.unwrap();
        ahead.acquire("u", "r").consume("rpm", 1).await.unwrap();
        let after = stored().await;
        let names: Vec<_> = after.limits.keys().map(|limit| limit.as_str()).collect();
        assert_eq!(names, ["new", "rpm"]);
        // Two seconds at the old rate of one a second, less one.
        assert_eq!(after.limits[&name("rpm")].tokens.get(), 41_000);
        assert_eq!(after.limits[&name("rpm")].rule.burst().get(), 600_000);

        // Its copy of the limits is half a minute old, and it does not reset them: it reads again
        // and learns the new limit.
        clock.advance(Duration::from_secs(30));
        let permit = behind.acquire("u", "r").consume("rpm", 300).await.unwrap();
        // More than the burst that it knew: "never" is based only on the table's state.
        assert_eq!(permit.cost().attempts, 1);
        // The bucket and four levels.
        assert_units!(permit.cost().read_units, if counts_reads { 5.0 } else { 1.0 });
        let adopted = stored().await;
        assert_eq!(
            adopted.limits.keys().collect::<Vec<_>>(),
            after.limits.keys().collect::<Vec<_>>()
        );
        let rpm = adopted.limits[&name("rpm")];
        assert_eq!(rpm.rule, after.limits[&name("rpm")].rule);
        // Thirty seconds at ten a second.
        assert_eq!((rpm.tokens.get(), rpm.consumed.get()), (41_000, 321_000));
        // The claim left room below the burst.
        clock.advance(Duration::from_secs(1));
        behind.acquire("u", "r").consume("new", 9).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_copy_of_one_level_beside_a_new_copy_of_another_undoes_nothing() {
    on_every_engine(async |table, clock, _| {
        let (ahead, behind): (Limiter, Limiter) =
            (limiter(table.clone(), &clock), limiter(table.clone(), &clock));
        let [_, entity, _, system] = scopes();
        ahead.set_limits(&system, &[Limit::per_minute("tpm", 100)]).await.unwrap();
        ahead.set_limits(&entity, &[Limit::per_minute("rpm", 100)]).await.unwrap();
        ahead.acquire("u", "r").consume("rpm", 1).await.unwrap();
        // It knows the system's limits, and none of this entity.
        behind.acquire("other", "r").consume("tpm", 1).await.unwrap();
        clock.advance(Duration::from_secs(5));
        ahead.set_limits(&system, &[Limit::per_minute("tpm", 200)]).await.unwrap();
        ahead.acquire("u", "r").consume("rpm", 1).await.unwrap();
        clock.advance(Duration::from_secs(5));
        ahead.set_limits(&entity, &[Limit::per_minute("rpm", 300)]).await.unwrap();
        behind.acquire("u", "r").consume("rpm", 1).await.unwrap();
        for limiter in [&ahead, &behind, &ahead] {
            limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
            let stored = table.stored(&bucket("u", "r")).await.unwrap();
            let burst = |limit: &str| stored.limits[&name(limit)].rule.burst().get() / 1_000;
            assert_eq!((burst("rpm"), burst("tpm")), (300, 200));
            clock.advance(Duration::from_secs(61));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn change_by_a_clock_behind_that_of_another_level_takes_effect() {
    on_every_engine(async |table, clock, _| {
        let slow = TestClock::at(at(T0 - 30_000));
        let (ahead, behind): (Limiter, Limiter) =
            (limiter(table.clone(), &clock), limiter(table.clone(), &slow));
        let [_, entity, _, system] = scopes();
        behind.set_limits(&system, &[Limit::per_minute("tpm", 100)]).await.unwrap();
        ahead.set_limits(&entity, &[Limit::per_minute("rpm", 100)]).await.unwrap();
        ahead.acquire("u", "r").consume("rpm", 1).await.unwrap();
        behind.set_limits(&system, &[Limit::per_minute("tpm", 200)]).await.unwrap();
        clock.advance(Duration::from_secs(61));
        ahead.acquire("u", "r").consume("rpm", 1).await.unwrap();
        let stored = table.stored(&bucket("u", "r")).await.unwrap();
        assert_eq!(stored.limits[&name("tpm")].rule.burst().get(), 200_000);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn item_that_follows_a_time_is_brought_to_versions() {
    on_every_engine(async |table, clock, _| {
        let (limiter, other): (Limiter, Limiter) =
            (limiter(table.clone(), &clock), limiter(table.clone(), &clock));
        let [_, entity, _, system] = scopes();
        limiter.set_limits(&system, &[Limit::per_minute("tpm", 100)]).await.unwrap();
        limiter.set_limits(&entity, &[Limit::per_minute("rpm", 100)]).await.unwrap();
        limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
        // A time that no level has: a clock was ahead, or the table was restored.
        for epoch in [T0 - 1, T0, T0 + 1_000_000] {
            let mut item = table.stored(&bucket("u", "r")).await.unwrap();
            item.config_stamp = ConfigStamp::Epoch(at(epoch));
            item.limits.remove(&name("tpm"));
            table.place(&bucket("u", "r"), Some(item)).await;
            for limiter in [&limiter, &other] {
                clock.advance(Duration::from_secs(61));
                limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
                let stored = table.stored(&bucket("u", "r")).await.unwrap();
                assert!(matches!(stored.config_stamp, ConfigStamp::Versions(_)), "{epoch}");
                assert!(stored.limits.contains_key(&name("tpm")), "{epoch}");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_were_deleted_by_hand_and_stored_again_take_effect() {
    on_every_engine(async |table, clock, _| {
        let limiter: Limiter = limiter(table.clone(), &clock);
        let [.., system] = scopes();
        let delete = async || {
            let text = |text: &str| aws_sdk_dynamodb::types::AttributeValue::S(text.to_owned());
            let delete = table.client().delete_item().table_name(table.name());
            delete.key("PK", text("SYSTEM#")).key("SK", text("#LIMITS")).send().await.unwrap();
        };
        limiter.set_limits(&system, &[Limit::per_minute("rpm", 100)]).await.unwrap();
        limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
        // With a clock that goes on, and with one that is behind.
        for (n, off_ms) in [(2, 1_000), (3, -500_000)] {
            delete().await;
            let other = TestClock::at(at(T0 + off_ms));
            let other: Limiter = crate::support::limiter(table.clone(), &other);
            other.set_limits(&system, &[Limit::per_minute("rpm", n * 100)]).await.unwrap();
            for _ in 0..2 {
                clock.advance(Duration::from_secs(61));
                let permit = limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
                assert_eq!(permit.cost().attempts, 1);
                let stored = table.stored(&bucket("u", "r")).await.unwrap();
                let burst = stored.limits[&name("rpm")].rule.burst().get();
                assert_eq!(burst, i64::try_from(n).unwrap() * 100_000);
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_writers_add_a_limit_at_once() {
    on_every_engine(async |table, clock, _| {
        let (a, b): (Limiter, Limiter) =
            (limiter(table.clone(), &clock), limiter(table.clone(), &clock));
        let rpm = || Limit::per_minute("rpm", 100);
        for limiter in [&a, &b] {
            limiter.acquire("u", "r").consume("rpm", 1).limits([rpm()]).await.unwrap();
        }
        let both = |limiter: &Limiter, tokens| {
            let limiter = limiter.clone();
            let limits = [rpm(), Limit::per_minute("tpm", 1_000)];
            async move {
                limiter
                    .acquire("u", "r")
                    .consume("rpm", 1)
                    .consume("tpm", tokens)
                    .limits(limits)
                    .await
                    .unwrap()
            }
        };
        tokio::join!(both(&a, 30), both(&b, 70));
        let stored = table.stored(&bucket("u", "r")).await.unwrap();
        let tpm = stored.limits[&name("tpm")];
        assert_eq!((tpm.tokens.get(), tpm.consumed.get()), (900_000, 100_000));
        assert_eq!(stored.limits[&name("rpm")].consumed.get(), 4_000);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_limits_are_read_once_a_minute() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let (proxy, table) = proxied(&engine).await;
        let clock = TestClock::at(at(T0));
        let limiter: Limiter = limiter(table, &clock);
        let [.., system] = scopes();
        limiter.set_limits(&system, &[Limit::per_minute("rpm", 100)]).await.unwrap();
        let id = bucket("u", "r");
        let child = EntityRecord {
            entity: id.entity.clone(),
            parent: Some(bucket("team", "r").entity),
            cascade: true,
        };
        limiter.put_entity(&child).await.unwrap();
        proxy.reset_counts();
        let first = limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
        // Half a unit each: three levels and bucket of the child; two levels and bucket of the
        // parent, which has the others in common. The record and the fourth level were stored here.
        // MiniStack does not report the cost of a BatchGetItem.
        let counts_reads = *engine.kind() == EngineKind::Embedded;
        assert_units!(first.cost().read_units, if counts_reads { 3.5 } else { 0.0 });
        assert_eq!(
            proxy.received_by_operation(),
            [("BatchGetItem".to_owned(), 2), ("TransactWriteItems".to_owned(), 1)].into()
        );
        for _ in 0..3 {
            clock.advance(Duration::from_secs(19));
            let warm = limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
            assert_eq!(warm.cost().read_units, 0.0);
        }
        clock.advance(Duration::from_secs(4));
        let again = limiter.acquire("u", "r").consume("rpm", 1).await.unwrap();
        assert_units!(again.cost().read_units, if counts_reads { 3.5 } else { 0.0 });
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_takes_from_its_parent_as_its_record_says() {
    on_every_engine(async |table, clock, _| {
        let limiter: Limiter = limiter(table.clone(), &clock);
        let (child, parent) = (bucket("u", "r"), bucket("team", "r"));
        limiter
            .set_limits(&LimitsScope::Entity(parent.entity.clone()), &[Limit::per_minute("rpm", 5)])
            .await
            .unwrap();
        limiter
            .set_limits(&scopes()[1], &[Limit::per_minute("rpm", 50), Limit::per_minute("tpm", 50)])
            .await
            .unwrap();
        let mut record = EntityRecord {
            entity: child.entity.clone(),
            parent: Some(parent.entity.clone()),
            cascade: true,
        };
        limiter.put_entity(&record).await.unwrap();
        // The parent has no tpm: it is not asked for any.
        limiter.acquire("u", "r").consume("rpm", 4).consume("tpm", 4).await.unwrap();
        assert_eq!(table.stored(&parent).await.unwrap().limits[&name("rpm")].consumed.get(), 4_000);
        let refused = limiter.acquire("u", "r").consume("rpm", 4).await.unwrap_err();
        let AcquireError::LimitExceeded(refused) = refused else { panic!("{refused:?}") };
        assert_eq!(refused.violations().map(|l| l.entity.as_str()).collect::<Vec<_>>(), ["team"]);

        record.cascade = false;
        limiter.put_entity(&record).await.unwrap();
        limiter.acquire("u", "r").consume("rpm", 4).await.unwrap();
        assert_eq!(table.stored(&parent).await.unwrap().limits[&name("rpm")].consumed.get(), 4_000);
    })
    .await;
}

/// Its bucket still has the limit, and no request for it may write there.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_limit_of_a_parent_is_not_asked_for() {
    on_every_engine(async |table, clock, _| {
        let limiter: Limiter = limiter(table.clone(), &clock);
        let [child, parent] = ["u", "team"].map(|entity| bucket(entity, "r").entity);
        let (child, parent) = (LimitsScope::Entity(child), LimitsScope::Entity(parent));
        limiter.set_limits(&child, &[Limit::per_minute("tpm", 50)]).await.unwrap();
        limiter.set_limits(&parent, &[Limit::per_minute("tpm", 5)]).await.unwrap();
        let ask = || limiter.acquire("u", "r").consume("tpm", 4).cascade_to("team");
        ask().await.unwrap();
        assert!(matches!(ask().await, Err(AcquireError::LimitExceeded(_))));
        limiter.delete_limits(&parent, &[name("tpm")]).await.unwrap();
        ask().await.unwrap();
        let spent = table.stored(&bucket("team", "r")).await.unwrap().limits[&name("tpm")].consumed;
        assert_eq!(spent.get(), 4_000);
    })
    .await;
}

/// Through a leasing limiter, too: once the held tokens are too old.
#[tokio::test(flavor = "multi_thread")]
async fn leased_limiter_changes_limits_and_entities_at_once() {
    on_every_engine(async |table, clock, _| {
        let settings = LeaseSettings { deadline: DEADLINE, ..LeaseSettings::default() };
        let store = DynamoStore::with_table(table.clone());
        let limiter = patient(Limiter::builder(store).clock(clock.clone()).leasing(settings));
        let [.., system] = scopes();
        let ask = async || limiter.acquire("u", "r").consume("rpm", 1).await.is_ok();
        limiter.set_limits(&system, &[Limit::per_minute("rpm", 6_000)]).await.unwrap();
        for _ in 0..50 {
            assert!(ask().await);
            clock.advance(Duration::from_millis(1));
        }
        limiter.set_limits(&system, &[Limit::per_minute("rpm", 1)]).await.unwrap();
        clock.advance(Duration::from_secs(2));
        assert_eq!([ask().await, ask().await], [true, false]);

        let (child, parent) = (bucket("u", "r").entity, bucket("team", "r"));
        let record =
            EntityRecord { entity: child, parent: Some(parent.entity.clone()), cascade: true };
        limiter.put_entity(&record).await.unwrap();
        clock.advance(Duration::from_secs(60));
        assert!(ask().await);
        assert!(limiter.shutdown(DEADLINE).await.unsettled.is_empty());
        assert_eq!(table.stored(&parent).await.unwrap().limits[&name("rpm")].consumed.get(), 1_000);
    })
    .await;
}
