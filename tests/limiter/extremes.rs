//! The largest amounts, repeatedly: a bucket stays usable after any legal request.

use std::time::Duration;

use sluicegate::{AcquireError, Limit, TestClock};

use crate::support::{Engine, T0, at, bucket, limiter, name, on_every_store};

/// The most tokens that every store counts.
const MOST: i64 = 1_000_000_000_000;

async fn the_largest_corrections<E: Engine>(store: E) {
    let clock = TestClock::at(at(T0));
    let limiter = limiter(store.clone(), &clock);
    let quota = || Limit::quota("rpm", MOST.unsigned_abs());
    for (entity, by) in [("up", MOST), ("down", -MOST)] {
        let permit =
            limiter.acquire(entity, "r").consume("rpm", 5).limits([quota()]).await.unwrap();
        let mut consumed = 5;
        permit.adjust("rpm", -6).await.unwrap();
        consumed -= 6;
        for _ in 0..3 {
            permit.adjust("rpm", by).await.unwrap();
            consumed += by;
        }
        let stored = store.image(&bucket(entity, "r")).await.unwrap().limits[&name("rpm")];
        assert_eq!(stored.consumed.get(), i128::from(consumed) * 1_000, "{entity}");
        clock.advance(Duration::from_secs(1));
        match limiter.acquire(entity, "r").consume("rpm", 1).limits([quota()]).await {
            Ok(_) => assert!(by < 0),
            Err(AcquireError::LimitExceeded(_)) => assert!(by > 0),
            Err(error) => panic!("{entity}: {error:?}"),
        }
        limiter.peek(entity, "r").limits([quota()]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_stay_usable_after_the_largest_corrections() {
    on_every_store!(the_largest_corrections);
}
