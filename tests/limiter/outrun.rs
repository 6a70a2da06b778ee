//! Refusals because another writer claimed a moment ago: the wait, and the cases without one.

use std::time::Duration;

use sluicegate::settings::StoreSettings;
use sluicegate::{AcquireError, Limit, Limiter, Permit, TestClock};

use crate::support::{Shared, T0, at, limiter_on, on_every_table, with_settings};

/// A thousand tokens a second, one every millisecond.
async fn ask(limiter: &Limiter, tokens: i64) -> Result<Permit, AcquireError> {
    let limits = [Limit::per_second("rps", 1_000)];
    limiter.acquire("u", "r").consume("rps", tokens).limits(limits).no_cascade().await
}

/// A limiter with an old image of a bucket that another process has emptied `ms` ago.
async fn emptied<T: Shared>(
    table: &T,
    clock: &TestClock,
    settings: StoreSettings,
    ms: u64,
) -> Limiter {
    let stale = with_settings(table.clone(), clock, settings);
    ask(&stale, 1).await.unwrap();
    clock.advance(Duration::from_secs(5));
    ask(&limiter_on(table.clone(), clock), 1_000).await.unwrap();
    clock.advance(Duration::from_millis(ms));
    stale
}

#[track_caller]
fn wait_ms<T: std::fmt::Debug>(result: Result<T, AcquireError>) -> u128 {
    match result {
        Err(AcquireError::LimitExceeded(exceeded)) => exceeded.retry_after.unwrap().as_millis(),
        other => panic!("{other:?}"),
    }
}

async fn exact_waits<T: Shared>(table: T) {
    let clock = TestClock::at(at(T0));
    let stale = emptied(&table, &clock, StoreSettings::default(), 40).await;
    // Forty of the hundred are there already.
    assert_eq!(wait_ms(ask(&stale, 100).await), 60);
    clock.advance(Duration::from_millis(59));
    assert_eq!(wait_ms(ask(&limiter_on(table.clone(), &clock), 100).await), 1);
    clock.advance(Duration::from_millis(1));
    ask(&stale, 100).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_after_an_outrun_names_the_exact_wait() {
    on_every_table!(exact_waits);
}

async fn from_before_the_call<T: Shared>(table: T) {
    let clock = TestClock::at(at(T0));
    let settings = StoreSettings { refusal_age_max: Duration::ZERO, ..StoreSettings::default() };
    let stale = emptied(&table, &clock, settings, 90).await;
    ask(&stale, 50).await.unwrap();
    assert_eq!(wait_ms(ask(&stale, 50).await), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_without_an_image_is_not_outrun_before_its_call() {
    on_every_table!(from_before_the_call);
}
