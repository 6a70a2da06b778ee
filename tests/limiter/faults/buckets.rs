//! Buckets in unusual states: about to expire in debt, refilled in the future.

use std::time::Duration;

use sluicegate::AcquireError;
use sluicegate::settings::{CascadeMode, StoreSettings};
use sluicegate::types::WritePath;
use sluicegate_testkit::Fault;

use super::{Disturbed, id, on_every_engine, rpm};
use crate::support::{Shared, T0, assert_units, at, name, with_settings};

#[tokio::test(flavor = "multi_thread")]
async fn a_debt_beyond_the_expiry_moves_it_at_once() {
    on_every_engine(async |on| {
        let limiter = on.limiter();
        let expiry_s = async || on.direct.stored(&id("u")).await.unwrap().expires_at_s.unwrap();
        let permit = ask!(limiter, "u").await.unwrap();
        let before = expiry_s().await;
        assert_eq!(before, T0 / 1_000 + 60 + 120);
        // 55 s below zero: the present expiry covers it.
        let adjusted = permit.adjust("rpm", 110).await.unwrap();
        assert_eq!(expiry_s().await, before);
        assert_units!(adjusted.write_units, 1.0);
        // 1,000 tokens missing at one a second, and 60 to be full; the answers to the first two
        // attempts at the expiry are faults.
        on.inject("UpdateItem", |number| match number {
            2 => Fault::THROTTLING,
            3 => Fault::CONFLICT,
            4 => Fault::LoseReply,
            _ => Fault::None,
        });
        permit.adjust("rpm", 945).await.unwrap();
        assert_eq!(on.rpm("u").await, (-1_000, 1_060));
        assert_eq!(expiry_s().await, T0 / 1_000 + 60 + 2 * 1_060);
    })
    .await;
}

/// Some clock was two minutes ahead when it wrote the bucket.
async fn ahead(on: &Disturbed, entity: &str, tokens: i64) {
    let limiter = on.limiter();
    ask!(limiter, entity).await.unwrap();
    let mut image = on.direct.stored(&id(entity)).await.unwrap();
    image.refilled_at = at(T0 + 120_000);
    let rpm = image.limits.get_mut(&name("rpm")).unwrap();
    rpm.tokens = sluicegate::types::Millitokens::from_tokens(tokens).unwrap();
    on.direct.place(&id(entity), Some(image)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_ahead_does_not_stop_refill() {
    on_every_engine(async |on| {
        ahead(on, "enough", 20).await;
        let limiter = on.limiter();
        let permit = ask!(limiter, "enough").await.unwrap();
        assert_eq!(permit.cost().path, Some(WritePath::Claim));
        assert_eq!(limiter.counters().clocks_ahead.get(), 1, "enough");
        let stored = on.direct.stored(&id("enough")).await.unwrap();
        assert_eq!((stored.refilled_at, on.rpm("enough").await), (at(T0), (15, 10)));

        ahead(on, "short", 2).await;
        let limiter = on.limiter();
        let error = ask!(limiter, "short").await.unwrap_err();
        let AcquireError::LimitExceeded(exceeded) = error else { panic!("{error:?}") };
        assert_eq!(exceeded.retry_after, Some(Duration::from_secs(3)));
        assert_eq!(limiter.counters().clocks_ahead.get(), 1, "short");
        let stored = on.direct.stored(&id("short")).await.unwrap();
        assert_eq!((stored.refilled_at, on.rpm("short").await), (at(T0), (2, 5)));

        for (n, mode) in
            [CascadeMode::Transaction, CascadeMode::Compensating].into_iter().enumerate()
        {
            let (child, parent) = (format!("child-{n}"), format!("parent-{n}"));
            ahead(on, &child, 20).await;
            ahead(on, &parent, 20).await;
            let settings = StoreSettings { cascade_mode: mode, ..StoreSettings::default() };
            let limiter = with_settings(on.table.clone(), &on.clock, settings);
            ask!(limiter, &child, &parent).await.unwrap();
            assert_eq!(limiter.counters().clocks_ahead.get(), 2, "{mode:?}");
            assert_eq!(on.rpm(&parent).await, (15, 10));
        }
    })
    .await;
}
