//! Requests that do not pass.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate::{
    AcquireError, AdjustError, Adjusted, Clock, Correction, Counters, EpochMillis, Grant,
    InvalidRequest, Limit, LimitStatus, Limiter, SetupError, Store, TestClock,
};

use crate::{Answer, T0, app, ask, limiter};

fn problem(answer: &Answer) -> Value {
    assert_eq!(answer.field("content-type"), "application/problem+json");
    serde_json::from_str(&answer.body).unwrap()
}

#[tokio::test]
async fn retry_after_is_how_long_it_takes() {
    let (limiter, clock) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 7)]);
    let user = [("x-user", "u")];
    for _ in 0..7 {
        assert_eq!(ask(&app, "/", &user).await.status, 200);
    }
    let refused = ask(&app, "/", &user).await;
    assert_eq!(refused.figures(), (429, r#""rpm";q=7;w=60"#, r#""rpm";r=0;t=60"#));
    // One of seven a minute takes 8.57 s.
    assert_eq!(refused.field("retry-after"), "9");
    assert_eq!(
        problem(&refused),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "wait as long as Retry-After says; without it, the quota does not refill",
            "violated-policies": ["rpm"],
        })
    );

    clock.advance(Duration::from_secs(8));
    let still = ask(&app, "/", &user).await;
    assert_eq!((still.status, still.field("retry-after")), (429, "1"));
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
        (429, r#""rpm";q=1;w=60, "tpm";q=600;w=60"#, r#""rpm";r=0;t=60, "tpm";r=100;t=50"#)
    );
    assert_eq!(refused.field("retry-after"), "60");
    assert_eq!(problem(&refused)["violated-policies"], json!(["rpm", "tpm"]));
    let refused = ask(&app, "/", &[("x-user", "u"), ("x-tokens", "100")]).await;
    assert_eq!(problem(&refused)["violated-policies"], json!(["rpm"]));
}

#[tokio::test]
async fn a_quota_that_is_used_up_has_no_retry_after() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::quota("rpm", 1)]);
    ask(&app, "/", &[("x-user", "u")]).await;
    let refused = ask(&app, "/", &[("x-user", "u")]).await;
    assert_eq!(refused.figures(), (429, r#""rpm";q=1"#, r#""rpm";r=0"#));
    assert_eq!(refused.field("retry-after"), "");
}

#[tokio::test]
async fn what_can_never_be_had_is_the_clients_mistake() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 1), Limit::per_minute("tpm", 600)]);
    ask(&app, "/", &[("x-user", "u")]).await;
    let refused = ask(&app, "/", &[("x-user", "u"), ("x-tokens", "601")]).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.field("ratelimit-policy"), r#""rpm";q=1;w=60, "tpm";q=600;w=60"#);
    assert_eq!(refused.field("retry-after"), "");
    assert_eq!(
        problem(&refused),
        json!({
            "type": "about:blank",
            "title": "Bad Request",
            "status": 400,
            "detail": "more is asked than the limit ever grants at once: ask for less",
            "violated-policies": ["tpm"],
        })
    );
}

/// A store that fails as it is told to.
struct Broken(Failure, Counters);

type Failure = fn() -> AcquireError;

impl Store for Broken {
    async fn acquire(&self, _: &sluicegate::Request, _: &dyn Clock) -> Result<Grant, AcquireError> {
        Err(self.0())
    }

    async fn adjust(&self, _: &Correction<'_>, _: &dyn Clock) -> Result<Adjusted, AdjustError> {
        Ok(Adjusted::default())
    }

    async fn peek(
        &self,
        _: &sluicegate::Request,
        _: &dyn Clock,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        Err(self.0())
    }

    fn counters(&self) -> &Counters {
        &self.1
    }
}

#[tokio::test]
async fn what_cannot_be_decided_says_nothing_of_the_inside() {
    let failures: [(Failure, u16, &str); 4] = [
        (|| AcquireError::Contended { attempts: 5 }, 503, "Service Unavailable"),
        (|| AcquireError::Unavailable("secret".into()), 503, "Service Unavailable"),
        (|| InvalidRequest::Nothing.into(), 500, "Internal Server Error"),
        (|| SetupError::NoTable("secret".into()).into(), 500, "Internal Server Error"),
    ];
    for (failure, status, title) in failures {
        let clock = TestClock::at(EpochMillis::new(T0).unwrap());
        let limiter = Limiter::with_clock(Broken(failure, Counters::default()), clock);
        let app = app(&limiter, &[Limit::per_minute("rpm", 1)]);
        let refused = ask(&app, "/", &[("x-user", "secret")]).await;
        assert_eq!(refused.figures(), (status, "", ""));
        let problem = problem(&refused);
        assert_eq!((&problem["type"], &problem["title"]), (&json!("about:blank"), &json!(title)));
        assert_eq!(problem["status"], status);
        assert!(!refused.body.contains("secret"), "{}", refused.body);
    }
}

#[tokio::test]
async fn names_that_keys_cannot_carry_are_the_programs_mistake() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 1)]);
    let refused = ask(&app, "/", &[("x-user", "a#b")]).await;
    assert_eq!(refused.status, 500);
    assert!(!refused.body.contains("a#b"), "{}", refused.body);
}
