//! Taking tokens ahead of need and settling them.

use std::collections::BTreeMap;
use std::time::Duration;

use sluicegate::redis::{LeaseCounting, LeaseFailed, LeaseOrder, LeaseWant, Leased, RedisStore};
use sluicegate::{AcquireError, BucketId, InvalidRequest, Limit, Millitokens, TestClock};
use sluicegate_core::{Amounts, Configuration, Resource, WritePath};

use super::{T0, at, entity, milli, name, server};

struct Leasing {
    store: RedisStore,
    clock: TestClock,
    bucket: BucketId,
    configuration: Configuration,
}

impl Leasing {
    async fn order(
        &self,
        wanted: Option<(i64, i64)>,
        returned: i64,
        counting: LeaseCounting<'_>,
    ) -> Result<Leased, LeaseFailed> {
        let want = |(least, most)| LeaseWant { least: milli(least), most: milli(most) };
        let wanted: BTreeMap<_, _> = wanted.map(|w| (name("rps"), want(w))).into_iter().collect();
        let returned = Amounts::from([(name("rps"), milli(returned))]);
        let order = LeaseOrder {
            bucket: &self.bucket,
            configuration: &self.configuration,
            wanted: &wanted,
            returned: &returned,
            counting,
            deadline: Duration::from_secs(20),
        };
        self.store.lease(&order, &self.clock).await
    }
}

fn stand(leased: &Leased) -> (i64, i64, i64) {
    let limit = leased.image.limits[&name("rps")];
    let amount = leased.leased.get(&name("rps")).copied().unwrap_or(Millitokens::ZERO);
    (amount.get(), limit.tokens.get(), limit.consumed.get())
}

#[tokio::test]
async fn one_call_settles_and_leases_a_share_of_what_is_there() {
    let Some(server) = server().await else { return };
    let (limit, rule) = Limit::per_second("rps", 100).check().unwrap();
    let leasing = Leasing {
        store: RedisStore::new(server.url()).unwrap(),
        clock: TestClock::at(at(T0)),
        bucket: BucketId { entity: entity("u"), resource: Resource::new("r").unwrap() },
        configuration: Configuration::explicit([(limit, rule)].into()),
    };
    let by = LeaseCounting::Leased;
    // A quarter of 100, within the bounds.
    let first = leasing.order(Some((1_000, 80_000)), 0, by).await.unwrap();
    assert_eq!((stand(&first), first.path), ((25_000, 75_000, 25_000), Some(WritePath::Create)));
    let small = leasing.order(Some((1_000, 5_000)), 20_000, by).await.unwrap();
    assert_eq!((stand(&small), small.path), ((5_000, 90_000, 10_000), Some(WritePath::Normal)));
    let large = leasing.order(Some((60_000, 60_000)), 0, by).await.unwrap();
    assert_eq!(stand(&large), (60_000, 30_000, 70_000));

    // Refused as a whole: what would have come back has not.
    let refused = leasing.order(Some((90_000, 90_000)), 50_000, by).await.unwrap_err();
    let AcquireError::LimitExceeded(exceeded) = &refused.error else { panic!("{refused:?}") };
    assert_eq!(exceeded.retry_after, Some(Duration::from_millis(600)));
    assert!(!refused.in_doubt);

    // Settled alone, by what was used; what no longer fits is lost.
    let used = Amounts::from([(name("rps"), milli(-3_000))]);
    let settled = leasing.order(None, 99_000, LeaseCounting::Used(&used)).await.unwrap();
    assert_eq!(stand(&settled), (0, 100_000, 67_000));
    let nothing = leasing.order(None, 0, by).await.unwrap();
    assert_eq!((stand(&nothing), nothing.path), ((0, 100_000, 67_000), None));

    let unknown = Leasing {
        configuration: Configuration::default(),
        bucket: BucketId { entity: entity("v"), ..leasing.bucket },
        ..leasing
    };
    let failed = unknown.order(Some((1, 1)), 0, by).await.unwrap_err();
    let is_unknown =
        matches!(failed.error, AcquireError::InvalidRequest(InvalidRequest::UnknownLimit(_)));
    assert!(is_unknown, "{failed:?}");
    drop(server);
    let away = unknown.order(Some((1, 1)), 0, by).await.unwrap_err();
    assert!(matches!(away.error, AcquireError::Unavailable(_)), "{away:?}");
}
