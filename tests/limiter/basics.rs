//! Acquire, wait, adjust, release: on one bucket, by one process.

use std::time::Duration;

use sluicegate::types::{Wait, WritePath};
use sluicegate::{AcquireError, Limit, TestClock};
use sluicegate_core::{CompositeBucket, LimitBalance, Millitokens, RulesHash};

use crate::support::limiter as make;
use crate::support::{Engine, Shared, T0, at, bucket, name, on_every_store, on_every_table};

fn exceeded(error: AcquireError) -> sluicegate::LimitExceeded {
    match error {
        AcquireError::LimitExceeded(exceeded) => exceeded,
        other => panic!("{other:?}"),
    }
}

async fn a_burst_then_the_exact_wait<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let limiter = make(table, &clock);
    let limits = [Limit::per_minute("rpm", 7), Limit::per_minute("tpm", 1_000)];
    let ask =
        || limiter.acquire("u", "r").consume("rpm", 1).consume("tpm", 10).limits(limits.clone());
    for _ in 0..7 {
        ask().await.unwrap();
    }
    let refused = exceeded(ask().await.unwrap_err());
    let violated: Vec<_> = refused.violations().map(|limit| limit.limit.as_str()).collect();
    assert_eq!((violated, refused.limits.len()), (vec!["rpm"], 2));
    // Up to a millitoken, one of seven a minute takes 60,000 / 7 ms.
    let wait = refused.retry_after.unwrap();
    assert!((8_571..=8_572).contains(&wait.as_millis()), "{wait:?}");

    clock.advance(wait - Duration::from_millis(1));
    let still = exceeded(ask().await.unwrap_err());
    assert_eq!(still.retry_after, Some(Duration::from_millis(1)));
    clock.advance(Duration::from_millis(1));
    ask().await.unwrap();
    exceeded(ask().await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_exactly_as_long_as_told_succeeds() {
    on_every_store!(a_burst_then_the_exact_wait);
}

async fn corrections<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let limiter = make(table.clone(), &clock);
    let id = bucket("u", "r");
    let limits =
        [Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 1_000), Limit::quota("usd", 50)];
    let permit = limiter
        .acquire("u", "r")
        .consume("rpm", 1)
        .consume("tpm", 600)
        .limits(limits.clone())
        .await
        .unwrap();
    permit.adjust("tpm", 900).await.unwrap();
    let stored = table.image(&id).await.unwrap();
    assert_eq!(stored.limits[&name("tpm")].tokens.get(), -500_000);
    assert_eq!(stored.limits[&name("tpm")].consumed.get(), 1_500_000);

    // A debt on one limit does not refuse a request for another.
    limiter.acquire("u", "r").consume("rpm", 1).limits(limits.clone()).await.unwrap();
    let refused =
        limiter.acquire("u", "r").consume("tpm", 1).limits(limits.clone()).await.unwrap_err();
    assert_eq!(exceeded(refused).retry_after, Some(Duration::from_millis(30_060)));

    // A limit that the request did not name.
    permit.adjust("usd", 3).await.unwrap();
    permit.adjust_milli("tpm", -1).await.unwrap();
    permit.release().await.unwrap();
    let stored = table.image(&id).await.unwrap();
    let of = |limit: &str| {
        let bucket = stored.limits[&name(limit)];
        (bucket.tokens.get(), bucket.consumed.get())
    };
    assert_eq!(of("tpm"), (1_000_000, 0));
    assert_eq!(of("rpm"), (99_000, 1_000));
    assert_eq!(of("usd"), (50_000, 0));
    assert_eq!(stored.expires_at_s, None, "a quota never fills");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_corrected_and_given_back() {
    on_every_store!(corrections);
}

async fn gone_before_the_correction<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let limiter = make(table.clone(), &clock);
    let id = bucket("u", "r");
    let limits = [Limit::per_minute("rpm", 10), Limit::per_minute("tpm", 1_000)];
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits(limits.clone());
    for by in [7, -7] {
        let permit = ask().await.unwrap();
        table.forget(&id).await;
        clock.advance(Duration::from_secs(300));
        permit.adjust("tpm", by).await.unwrap();
        let stored = table.image(&id).await.unwrap();
        let tpm = stored.limits[&name("tpm")];
        assert_eq!(tpm.tokens.get(), 1_000_000 - by.max(0) * 1_000);
        assert_eq!(tpm.consumed.get(), i128::from(by) * 1_000);
        assert_eq!(stored.limits[&name("rpm")].tokens.get(), 10_000);
        // It works as any other.
        assert_eq!(ask().await.unwrap().cost().attempts, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correction_after_the_bucket_expired_leaves_one_that_works() {
    on_every_store!(gone_before_the_correction);
}

/// The trace of the reference: 90 of 100, writers ask 3 and 7 in the same second.
async fn the_trace<T: Shared>(table: T) {
    let clock = TestClock::at(at(T0));
    let id = bucket("user-123", "gpt-4");
    let limit = Limit::per_minute("rpm", 100);
    let (rpm, rule) = limit.check().unwrap();
    let tokens = Millitokens::from_tokens(90).unwrap();
    let stands = LimitBalance { rule, tokens, consumed: Millitokens::ZERO.into() };
    let image = CompositeBucket {
        entity: id.entity.clone(),
        resource: id.resource.clone(),
        refilled_at: at(T0),
        limits: [(rpm.clone(), stands)].into(),
        expires_at_s: None,
        config_stamp: sluicegate_core::ConfigStamp::None,
        rules_hash: Some(RulesHash::of([(&rpm, &rule)])),
        request_ids: Vec::new(),
    };
    table.place(&id, Some(image)).await;
    let (a, b) = (make(table.clone(), &clock), make(table.clone(), &clock));
    // Both have seen the bucket before the second passes.
    for limiter in [&a, &b] {
        let short =
            limiter.acquire("user-123", "gpt-4").consume("rpm", 100).limits([limit.clone()]).await;
        assert!(matches!(short, Err(AcquireError::LimitExceeded(_))), "{short:?}");
    }
    clock.advance(Duration::from_secs(1));
    let three =
        a.acquire("user-123", "gpt-4").consume("rpm", 3).limits([limit.clone()]).await.unwrap();
    let seven =
        b.acquire("user-123", "gpt-4").consume("rpm", 7).limits([limit.clone()]).await.unwrap();
    assert_eq!((three.cost().path, three.cost().attempts), (Some(WritePath::Claim), 1));
    // It loses the lock and retries without a read.
    assert_eq!((seven.cost().path, seven.cost().attempts), (Some(WritePath::Unclaimed), 2));
    assert_eq!(seven.cost().read_units, 0.0);
    let end = table.stored(&id).await.unwrap().limits[&rpm];
    assert!((81_666..=81_667).contains(&end.tokens.get()), "{end:?}");
    assert_eq!(end.consumed.get(), 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_the_reference_ends_where_it_should() {
    on_every_table!(the_trace);
}

/// Buckets as another producer of the reference schema leaves them: no hash, no ids, no epoch.
async fn foreign<T: Shared>(table: T) {
    let clock = TestClock::at(at(T0));
    let id = bucket("u", "r");
    let limit = Limit::per_minute("rpm", 10);
    let (rpm, rule) = limit.check().unwrap();
    let image = CompositeBucket {
        entity: id.entity.clone(),
        resource: id.resource.clone(),
        refilled_at: at(T0 - 50),
        limits: [(
            rpm.clone(),
            LimitBalance {
                rule,
                tokens: Millitokens::from_tokens(5).unwrap(),
                consumed: Millitokens::from_tokens(5).unwrap().into(),
            },
        )]
        .into(),
        expires_at_s: Some(T0 / 1_000 + 10),
        config_stamp: sluicegate_core::ConfigStamp::None,
        rules_hash: None,
        request_ids: Vec::new(),
    };
    table.place(&id, Some(image)).await;
    let limiter = make(table.clone(), &clock);
    let ask = || limiter.acquire("u", "r").consume("rpm", 1).limits([limit.clone()]);
    assert_eq!(ask().await.unwrap().cost().path, Some(WritePath::Unclaimed));
    clock.advance(Duration::from_secs(1));
    assert_eq!(ask().await.unwrap().cost().path, Some(WritePath::Claim));
    let stored = table.stored(&id).await.unwrap();
    assert_eq!(stored.limits[&rpm].consumed.get(), 7_000);
    assert_eq!(stored.rules_hash, Some(RulesHash::of([(&rpm, &rule)])));
    assert_eq!(stored.request_ids.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_of_another_producer_need_no_conversion() {
    on_every_table!(foreign);
}

async fn looking<E: Engine>(table: E) {
    let clock = TestClock::at(at(T0));
    let limiter = make(table.clone(), &clock);
    let limits = [Limit::per_second("rps", 4), Limit::quota("usd", 5)];
    let fresh = limiter.peek("u", "r").limits(limits.clone()).await.unwrap();
    assert_eq!(fresh.iter().map(|limit| limit.available.get()).collect::<Vec<_>>(), [4_000, 5_000]);
    assert_eq!(table.image(&bucket("u", "r")).await, None, "looking takes nothing");

    let all = limiter
        .acquire("u", "r")
        .consume("rps", 4)
        .consume("usd", 5)
        .limits(limits.clone())
        .await
        .unwrap();
    assert!(all.is_near_limit());
    all.adjust("usd", -2).await.unwrap();
    let taken = limiter.peek("u", "r").limits(limits.clone()).await.unwrap();
    assert_eq!(taken.iter().map(|limit| limit.consumed.get()).collect::<Vec<_>>(), [4_000, 3_000]);
    all.adjust("usd", 2).await.unwrap();
    let wait = |limit: &'static str| {
        limiter.acquire("u", "r").consume(limit, 1).limits(limits.clone()).time_until_available()
    };
    assert_eq!(wait("rps").await.unwrap(), Some(Duration::from_millis(250)));
    assert_eq!(wait("usd").await.unwrap(), None);
    let never =
        limiter.acquire("u", "r").consume("rps", 5).limits(limits.clone()).await.unwrap_err();
    let AcquireError::NeverAdmissible(never) = never else { panic!("{never:?}") };
    assert_eq!(never.limits[0].wait, Wait::ExceedsBurst);
    let refused =
        limiter.acquire("u", "r").consume("usd", 1).limits(limits.clone()).await.unwrap_err();
    assert_eq!(exceeded(refused).retry_after, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_takes_nothing_and_tells_never_from_not_yet() {
    on_every_store!(looking);
}
