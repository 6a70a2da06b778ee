//! Lists of buckets, some of them in the older layout: each bucket once, in its layout.

use std::num::NonZeroU16;

use futures_util::TryStreamExt;
use sluicegate::dynamo::DynamoTable;
use sluicegate::dynamo::{Reader, Segment};
use sluicegate::types::{BucketId, EpochMillis, LimitName};
use sluicegate::{Clock, SystemClock};
use sluicegate_core::CompositeBucket;
use sluicegate_testkit::legacy::{self, key, per_minute};
use sluicegate_testkit::on_every_engine;

use crate::support::bucket;

/// Names that sort directly beside one another and around `#`.
const NAMES: [&str; 5] = ["a", "a!", "a$", "a-b", "b"];
const LIMITS: [&str; 3] = ["rpd", "rpm", "tpm"];

fn then() -> EpochMillis {
    EpochMillis::new(SystemClock.now().get() - 1_000).unwrap()
}

async fn place(table: &DynamoTable, bucket: &BucketId) {
    let (entity, resource) = (bucket.entity.as_str(), bucket.resource.as_str());
    let item = |limit| legacy::item(&key(entity, resource, limit), &per_minute(60, 0, then()));
    legacy::put(table.client(), table.name(), LIMITS.map(item)).await;
}

/// The entries of a list: the name and the limits of each bucket.
async fn listed(
    list: impl futures_util::Stream<Item = Result<CompositeBucket, sluicegate::dynamo::ReadError>>,
) -> Vec<(BucketId, Vec<LimitName>)> {
    let buckets: Vec<_> = list.try_collect().await.unwrap();
    buckets.into_iter().map(|image| (image.id(), image.limits.into_keys().collect())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bucket_is_listed_once_in_either_layout() {
    on_every_engine(async |engine| {
        let table = DynamoTable::new(engine.client(), engine.create_table().await);
        for (n, entity) in NAMES.iter().enumerate() {
            for (m, resource) in NAMES.iter().enumerate() {
                let bucket = bucket(entity, resource);
                place(&table, &bucket).await;
                // A third is converted; of half of these an older producer's writes lie beside it.
                if (n + m) % 3 == 0 {
                    table.convert(&bucket).await.unwrap();
                    if m % 2 == 0 {
                        place(&table, &bucket).await;
                    }
                }
            }
        }
        let limits: Vec<_> = LIMITS.iter().map(|limit| LimitName::new(*limit).unwrap()).collect();
        let all = |ids: Vec<BucketId>| -> Vec<_> {
            ids.into_iter().map(|id| (id, limits.clone())).collect()
        };
        for page in [1, 2, 3, 7, 100] {
            let reader = table.clone().converting_legacy().reader();
            let reader = reader.page_size(NonZeroU16::new(page).unwrap());
            for name in NAMES {
                let of = bucket(name, name);
                let expected = all(NAMES.map(|other| bucket(name, other)).to_vec());
                let mut found = listed(reader.buckets_of_entity(&of.entity)).await;
                found.sort();
                assert_eq!(found, expected, "entity {name}, {page} a page");
                let expected = all(NAMES.map(|other| bucket(other, name)).to_vec());
                let mut found = listed(reader.buckets_of_resource(&of.resource)).await;
                found.sort();
                assert_eq!(found, expected, "resource {name}, {page} a page");
            }
            assert_eq!(scanned(&reader, 1).await, scanned(&reader, 5).await);
        }
    })
    .await;
}

/// The results of all segments of a scan.
async fn scanned(reader: &Reader, of: u16) -> Vec<BucketId> {
    let mut found = Vec::new();
    for number in 0..of {
        let pages: Vec<_> =
            reader.legacy_buckets(Segment { number, of }).try_collect().await.unwrap();
        found.extend(pages.into_iter().flat_map(|page| page.buckets));
    }
    found.sort();
    assert!(found.windows(2).all(|two| two[0] != two[1]), "{found:?}");
    // 25, of which 8 were converted; of 5 of these, items came back.
    assert_eq!(found.len(), 22, "{found:?}");
    found
}
