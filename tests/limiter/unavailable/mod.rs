//! The store is unavailable: grants, waits, and calls.

mod breaker;
mod denied;
mod leased;
mod local;
mod matrix;
mod no_connection;
mod policy;
mod pulse;
mod servers;

use std::time::Duration;

use sluicegate::request::Cause;
use sluicegate::{
    AcquireError, CompositeStore, Limiter, LimiterBuilder, OnUnavailable, Permit, TestClock,
};

use crate::scripted::{Act, Scripted};
use crate::support::{T0, at};

type Builder = LimiterBuilder<CompositeStore<Scripted>>;

const DEADLINE: Duration = Duration::from_millis(250);
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// More than a probe takes to be sent and answered.
const PROBED: Duration = Duration::from_millis(300);
/// Failures in a row that open the breaker.
const FAILURES: u32 = 5;

macro_rules! ask {
    ($limiter:expr, $tokens:expr) => {
        $limiter
            .acquire("u", "r")
            .consume("rpm", $tokens)
            .limits([sluicegate::Limit::per_minute("rpm", 60)])
            .no_cascade()
    };
}
use ask;

/// A limiter with default settings, except for its policy without the store.
fn limiter(policy: OnUnavailable) -> (Limiter, Scripted, TestClock) {
    limiter_with(|builder| builder.on_unavailable(policy))
}

fn limiter_with(set: impl FnOnce(Builder) -> Builder) -> (Limiter, Scripted, TestClock) {
    let (table, clock) = (Scripted::default(), TestClock::at(at(T0)));
    let store = CompositeStore::with_table(table.clone());
    (set(Limiter::builder(store).clock(clock.clone())).build(), table, clock)
}

/// The same, connected, and from now on without an answer.
async fn hung(policy: OnUnavailable) -> (Limiter, Scripted, TestClock) {
    hung_with(|builder| builder.on_unavailable(policy)).await
}

async fn hung_with(set: impl FnOnce(Builder) -> Builder) -> (Limiter, Scripted, TestClock) {
    let (limiter, table, clock) = limiter_with(set);
    limiter.warm_up().await.unwrap();
    table.always(Act::Hang);
    table.calls();
    (limiter, table, clock)
}

/// The same, and found to be unavailable.
async fn away(policy: OnUnavailable) -> (Limiter, Scripted, TestClock) {
    away_with(|builder| builder.on_unavailable(policy)).await
}

async fn away_with(set: impl FnOnce(Builder) -> Builder) -> (Limiter, Scripted, TestClock) {
    let (limiter, table, clock) = hung_with(set).await;
    for _ in 0..FAILURES {
        let _ = ask!(limiter, 1).await;
    }
    assert_eq!(limiter.counters().outages.get(), 1);
    table.calls();
    (limiter, table, clock)
}

/// The result of a call, and its duration.
async fn timed<T>(call: impl IntoFuture<Output = T>) -> (T, Duration) {
    let start = tokio::time::Instant::now();
    let result = call.await;
    (result, start.elapsed())
}

#[track_caller]
fn is_unavailable<T: std::fmt::Debug>(result: Result<T, AcquireError>) {
    assert!(matches!(result, Err(AcquireError::Unavailable(_))), "{result:?}");
}

#[track_caller]
fn was_unanswered(permit: &Permit) {
    let cause = permit.degraded().map(|degraded| &degraded.cause);
    assert!(matches!(cause, Some(Cause::CallFailed(_))), "{cause:?}");
}

#[track_caller]
fn was_not_asked(permit: &Permit) {
    let cause = permit.degraded().map(|degraded| &degraded.cause);
    assert!(matches!(cause, Some(Cause::NotAsked { .. })), "{cause:?}");
}
