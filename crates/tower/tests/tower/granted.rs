//! Requests that pass.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::routing::get;
use futures_util::StreamExt;
use serde_json::json;
use sluicegate::{Limit, Permit};
use sluicegate_tower::{LimitRequest, RateLimitLayer};
use tower::ServiceExt;

use crate::{app, ask, builder, consumed, limiter, wanted};

#[tokio::test]
async fn a_granted_request_says_what_is_left() {
    let (limiter, clock) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 100)]);
    for _ in 0..49 {
        ask(&app, "/", &[("x-user", "u")]).await;
    }
    let answer = ask(&app, "/", &[("x-user", "u")]).await;
    assert_eq!(answer.figures(), (200, r#""rpm";q=100;w=60"#, r#""rpm";r=50;t=30"#));
    assert_eq!((answer.body.as_str(), answer.field("retry-after")), ("done", ""));

    // 6 s refill ten tokens.
    clock.advance(Duration::from_secs(6));
    let answer = ask(&app, "/", &[("x-user", "u")]).await;
    assert_eq!(answer.field("ratelimit"), r#""rpm";r=59;t=25"#);
    // Another user has a bucket of its own.
    let answer = ask(&app, "/", &[("x-user", "v")]).await;
    assert_eq!(answer.field("ratelimit"), r#""rpm";r=99;t=1"#);
}

#[tokio::test]
async fn every_limit_is_a_member() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 10).burst(20), Limit::quota("tpm", 1_000)]);
    let answer = ask(&app, "/", &[("x-user", "u"), ("x-tokens", "400")]).await;
    assert_eq!(
        answer.figures(),
        (200, r#""rpm";q=20;w=60, "tpm";q=1000"#, r#""rpm";r=19;t=6, "tpm";r=600"#)
    );
}

#[tokio::test]
async fn a_parent_is_a_member_without_its_name() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 2)]);
    let of = |user: &'static str| [("x-user", user), ("x-project", "secret-project")];
    let answer = ask(&app, "/", &of("u")).await;
    let policy = r#""rpm";q=2;w=60, "parent:rpm";q=2;w=60"#;
    assert_eq!(answer.figures(), (200, policy, r#""rpm";r=1;t=30, "parent:rpm";r=1;t=30"#));
    ask(&app, "/", &of("v")).await;

    let refused = ask(&app, "/", &of("u")).await;
    assert_eq!(refused.figures(), (429, policy, r#""rpm";r=1;t=30, "parent:rpm";r=0;t=30"#));
    assert_eq!(refused.problem()["violated-policies"], json!(["parent:rpm"]));
    assert!(!refused.body.contains("secret"));
    assert_eq!(consumed(&limiter, "u", "rpm"), Some(1_000));
    assert_eq!(consumed(&limiter, "secret-project", "rpm"), Some(2_000));
}

#[tokio::test]
async fn unlimited_requests_pass_unchanged() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 1)]);
    for _ in 0..3 {
        let answer = ask(&app, "/", &[]).await;
        assert_eq!(answer.figures(), (200, "", ""));
    }
}

#[tokio::test]
async fn a_handler_corrects_its_lease() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 10), Limit::per_minute("tpm", 1_000)]);
    let asked = [("x-user", "u"), ("x-tokens", "600")];
    let adjusted = ask(&app, "/adjust", &[asked[0], asked[1], ("x-by", "150")]).await;
    // The fields know of it.
    assert_eq!(adjusted.field("ratelimit"), r#""rpm";r=9;t=6, "tpm";r=250;t=45"#);
    assert_eq!(consumed(&limiter, "u", "tpm"), Some(750_000));

    // A balance below zero counts as nothing left.
    let few = [("x-user", "u"), ("x-tokens", "50"), ("x-by", "400")];
    assert_eq!(
        ask(&app, "/adjust", &few).await.field("ratelimit"),
        r#""rpm";r=8;t=12, "tpm";r=0;t=72"#
    );
    assert_eq!(consumed(&limiter, "u", "tpm"), Some(1_200_000));
}

#[tokio::test]
async fn a_handler_gives_back_once() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 10), Limit::per_minute("tpm", 1_000)]);
    let asked = [("x-user", "u"), ("x-tokens", "300")];
    ask(&app, "/", &asked).await;
    let failed = ask(&app, "/fail", &asked).await;
    assert_eq!(
        (failed.status, failed.field("ratelimit")),
        (502, r#""rpm";r=9;t=6, "tpm";r=700;t=18"#)
    );
    assert_eq!(consumed(&limiter, "u", "tpm"), Some(300_000));
    assert_eq!(consumed(&limiter, "u", "rpm"), Some(1_000));
}

#[tokio::test]
async fn a_trial_tells_nobody() {
    let limiter = builder().0.shadow().build();
    let app = app(&limiter, &[Limit::per_minute("rpm", 1)]);
    for _ in 0..2 {
        assert_eq!(ask(&app, "/", &[("x-user", "u")]).await.figures(), (200, "", ""));
    }
    assert_eq!(limiter.counters().shadowed.get(), 1);
}

/// Sends three parts and takes 40 tokens before each.
async fn stream(request: Request) -> Body {
    let permit = request.extensions().get::<Arc<Permit>>().unwrap().clone();
    Body::from_stream(futures_util::stream::iter(0..3).then(move |n| {
        let permit = permit.clone();
        async move { permit.adjust("tpm", 40).await.map(|_| Bytes::from(format!("part {n};"))) }
    }))
}

#[tokio::test]
async fn a_body_that_is_being_sent_corrects_its_lease() {
    let (limiter, _) = limiter();
    let limits = [Limit::per_minute("rpm", 10), Limit::per_minute("tpm", 100)];
    let layer = RateLimitLayer::new(limiter.clone(), wanted(&limits));
    let app = Router::new().route("/", get(stream)).layer(layer);
    let request = Request::get("/").header("x-user", "u").header("x-tokens", "10");
    let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    // The fields show the state at the beginning of the body.
    assert_eq!(response.headers()["ratelimit"], r#""rpm";r=9;t=6, "tpm";r=90;t=6"#);
    assert_eq!(consumed(&limiter, "u", "tpm"), Some(10_000));

    let mut parts = response.into_body().into_data_stream();
    for taken in [50_000, 90_000, 130_000] {
        parts.next().await.unwrap().unwrap();
        assert_eq!(consumed(&limiter, "u", "tpm"), Some(taken));
    }
    assert!(parts.next().await.is_none());
    let next = ask(&app, "/", &[("x-user", "u"), ("x-tokens", "1")]).await;
    assert_eq!((next.status, next.field("retry-after")), (429, "19"));
}

#[tokio::test]
async fn extractor_asks_in_every_way_of_a_request() {
    let (builder, clock) = builder();
    let parent = sluicegate::EntityId::new("all").unwrap();
    let limiter = builder.cascade(sluicegate::settings::Cascade::To(parent)).build();
    let layer = RateLimitLayer::new(limiter.clone(), |parts| {
        let wanted = LimitRequest::new("u", "api").limits([Limit::per_minute("rpm", 2)]);
        Ok(Some(match parts.uri.path() {
            "/alone" => wanted.consume("rpm", 1).no_cascade(),
            "/team" => wanted
                .consume_milli("rpm", 500)
                .cascade_to("team")
                .parent_limits([Limit::per_minute("rpm", 60)]),
            _ => wanted.consume("rpm", 1).no_cascade().wait_up_to(Duration::from_secs(60)),
        }))
    });
    let handler = || async { "done" };
    let app = Router::new()
        .route("/alone", get(handler))
        .route("/team", get(handler))
        .route("/wait", get(handler))
        .layer(layer);

    let team = ask(&app, "/team", &[]).await;
    let policy = r#""rpm";q=2;w=60, "parent:rpm";q=60;w=60"#;
    assert_eq!(team.figures(), (200, policy, r#""rpm";r=1;t=15, "parent:rpm";r=59;t=1"#));
    assert_eq!(consumed(&limiter, "team", "rpm"), Some(500));
    let alone = ask(&app, "/alone", &[]).await;
    assert_eq!(alone.figures(), (200, r#""rpm";q=2;w=60"#, r#""rpm";r=0;t=45"#));
    assert_eq!(consumed(&limiter, "all", "rpm"), None);

    let waiting = tokio::spawn(async move { ask(&app, "/wait", &[]).await.status });
    while clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(15));
    assert_eq!(waiting.await.unwrap(), 200);
}
