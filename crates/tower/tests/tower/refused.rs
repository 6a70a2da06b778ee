//! Requests that do not pass.

use std::time::Duration;

use serde_json::json;
use std::future::ready;

use sluicegate::error::{InvalidRequest, SetupError};
use sluicegate::request::Adjusted;
use sluicegate::store::BoxFuture;
use sluicegate::store::{Correction, Counters, Grant, Store};
use sluicegate::types::EpochMillis;
use sluicegate::{
    AcquireError, AdjustError, Clock, Limit, LimitStatus, Limiter, OnUnavailable, TestClock,
};

use crate::{T0, app, ask, limiter, untyped};

#[tokio::test]
async fn retry_after_is_how_long_it_takes() {
    let (limiter, clock) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 7)]);
    let user = [("x-user", "u")];
    for _ in 0..7 {
        assert_eq!(ask(&app, "/", &user).await.status, 200);
    }
    let refused = ask(&app, "/", &user).await;
    // One of seven a minute takes 8.57 s.
    assert_eq!(refused.figures(), (429, r#""rpm";q=7;w=60"#, r#""rpm";r=0;t=9"#));
    assert_eq!(refused.field("retry-after"), "9");
    assert_eq!(
        refused.problem(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "wait as long as Retry-After says",
            "violated-policies": ["rpm"],
        })
    );

    clock.advance(Duration::from_secs(8));
    let still = ask(&app, "/", &user).await;
    assert_eq!((still.status, still.field("retry-after")), (429, "1"));
    assert_eq!(still.field("ratelimit"), r#""rpm";r=0;t=1"#);
    clock.advance(Duration::from_secs(1));
    assert_eq!(ask(&app, "/", &user).await.status, 200);
}

#[tokio::test]
async fn the_longest_wait_counts_and_all_that_are_short_are_named() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 1), Limit::per_minute("tpm", 600)]);
    ask(&app, "/", &[("x-user", "u"), ("x-tokens", "500")]).await;
    let refused = ask(&app, "/", &[("x-user", "u"), ("x-tokens", "300")]).await;
    assert_eq!(
        refused.figures(),
        (429, r#""rpm";q=1;w=60, "tpm";q=600;w=60"#, r#""rpm";r=0;t=60, "tpm";r=100;t=20"#)
    );
    assert_eq!(refused.field("retry-after"), "60");
    assert_eq!(refused.problem()["violated-policies"], json!(["rpm", "tpm"]));
    let refused = ask(&app, "/", &[("x-user", "u"), ("x-tokens", "100")]).await;
    assert_eq!(refused.problem()["violated-policies"], json!(["rpm"]));
    assert_eq!(refused.field("ratelimit"), r#""rpm";r=0;t=60, "tpm";r=100;t=50"#);
}

#[tokio::test]
async fn no_field_names_a_later_time_than_retry_after() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_second("rpm", 1), Limit::per_hour("tpm", 600)]);
    ask(&app, "/", &[("x-user", "u"), ("x-tokens", "500")]).await;
    let refused = ask(&app, "/", &[("x-user", "u"), ("x-tokens", "100")]).await;
    // `tpm` is full in 50 minutes, but has the requested amount.
    assert_eq!(refused.field("ratelimit"), r#""rpm";r=0;t=1, "tpm";r=100;t=1"#);
    assert_eq!(refused.field("retry-after"), "1");
}

#[tokio::test]
async fn a_quota_that_is_used_up_has_no_retry_after() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::quota("rpm", 1)]);
    ask(&app, "/", &[("x-user", "u")]).await;
    let refused = ask(&app, "/", &[("x-user", "u")]).await;
    assert_eq!(refused.figures(), (429, r#""rpm";q=1"#, r#""rpm";r=0"#));
    assert_eq!(refused.field("retry-after"), "");
    let problem = refused.problem();
    assert_eq!(problem["detail"], "the quota is used up and does not refill");
    assert_eq!(problem["violated-policies"], json!(["rpm"]));
}

#[tokio::test]
async fn never_admissible_request_is_a_client_error() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 1), Limit::per_minute("tpm", 600)]);
    ask(&app, "/", &[("x-user", "u")]).await;
    let refused = ask(&app, "/", &[("x-user", "u"), ("x-tokens", "601")]).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.field("ratelimit-policy"), r#""rpm";q=1;w=60, "tpm";q=600;w=60"#);
    assert_eq!(refused.field("retry-after"), "");
    let detail = "the request asks for more than the limit ever grants at once: ask for less";
    let mut expected = untyped(400, "Bad Request", detail);
    expected["violated-policies"] = json!(["tpm"]);
    assert_eq!(refused.problem(), expected);
}

/// A store that fails as the test sets.
struct Broken(Failure, Counters);

type Failure = fn() -> AcquireError;

impl Store for Broken {
    fn acquire<'a>(
        &'a self,
        _: &'a sluicegate::store::Request,
        _: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(ready(Err(self.0())))
    }

    fn adjust<'a>(
        &'a self,
        _: &'a Correction<'a>,
        _: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Adjusted, AdjustError>> {
        Box::pin(ready(Ok(Adjusted::default())))
    }

    fn peek<'a>(
        &'a self,
        _: &'a sluicegate::store::Request,
        _: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Vec<LimitStatus>, AcquireError>> {
        Box::pin(ready(Err(self.0())))
    }

    fn counters(&self) -> &Counters {
        &self.1
    }
}

#[tokio::test]
async fn undecided_request_reveals_no_internals() {
    let away = (
        "Service Unavailable",
        "the rate limit cannot be checked at the moment, and tokens may have been taken: ask again later",
    );
    let broken = ("Internal Server Error", "the rate limit cannot be checked");
    let failures: [(Failure, u16, &str, (&str, &str)); 4] = [
        (|| AcquireError::Contended { attempts: 5 }, 503, "1", away),
        (|| AcquireError::Unavailable("secret".into()), 503, "5", away),
        (|| InvalidRequest::Empty.into(), 500, "", broken),
        (|| SetupError::NoTable("secret".into()).into(), 500, "", broken),
    ];
    for (failure, status, retry_after, (title, detail)) in failures {
        let clock = TestClock::at(EpochMillis::new(T0).unwrap());
        let limiter = Limiter::builder(Broken(failure, Counters::default()))
            .clock(clock)
            .on_unavailable(OnUnavailable::Deny)
            .build();
        let app = app(&limiter, &[Limit::per_minute("rpm", 1)]);
        let refused = ask(&app, "/", &[("x-user", "secret")]).await;
        assert_eq!(refused.figures(), (status, "", ""));
        assert_eq!(refused.field("retry-after"), retry_after);
        assert_eq!(refused.problem(), untyped(status, title, detail));
    }
}

/// Under `Allow` no balance is known; under `Local`, the fields show those of the process itself.
#[tokio::test]
async fn an_answer_of_an_outage_says_what_is_known_and_not_that_there_is_one() {
    for (policy, fields) in [
        (OnUnavailable::Allow, ("", "")),
        (OnUnavailable::Local, (r#""rpm";q=2;w=60"#, r#""rpm";r=1;t=30"#)),
    ] {
        let clock = TestClock::at(EpochMillis::new(T0).unwrap());
        let away: Failure = || AcquireError::Unavailable("secret".into());
        let limiter = Limiter::builder(Broken(away, Counters::default()))
            .clock(clock)
            .on_unavailable(policy)
            .build();
        let app = app(&limiter, &[Limit::per_minute("rpm", 2)]);
        let granted = ask(&app, "/", &[("x-user", "u")]).await;
        assert_eq!(granted.figures(), (200, fields.0, fields.1));
        assert_eq!(granted.body, "done");
        // The handler gives the permit back, twice: that does nothing, and is no error.
        assert_eq!(ask(&app, "/fail", &[("x-user", "u")]).await.status, 502);
        let third = ask(&app, "/", &[("x-user", "u")]).await;
        assert_eq!(third.status, if policy == OnUnavailable::Local { 429 } else { 200 });
    }
}
