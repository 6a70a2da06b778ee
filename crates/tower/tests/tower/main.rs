//! The tower layer as clients and handlers see it, over a table in memory and a clock that the
//! tests move.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod granted;
mod refused;
mod rejected;
mod service;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::routing::get;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use sluicegate::types::{BucketId, EpochMillis, LimitName};
use sluicegate::{
    EntityId, Limit, Limiter, LimiterBuilder, MemoryStore, Permit, Resource, TestClock,
};
use sluicegate_tower::{LimitRequest, RateLimitLayer, Rejection};
use tower::ServiceExt;

const T0: i64 = 1_769_608_800_000;

fn limiter() -> (Limiter, TestClock) {
    let (builder, clock) = builder();
    (builder.build(), clock)
}

fn builder() -> (LimiterBuilder<MemoryStore>, TestClock) {
    let clock = TestClock::at(EpochMillis::new(T0).unwrap());
    (Limiter::builder(MemoryStore::new()).clock(clock.clone()), clock)
}

/// Limits every client that names itself: one `rpm` a request, and as many `tpm` as it names.
fn wanted(limits: &[Limit]) -> impl Fn(&Parts) -> Extracted + Send + Sync + 'static {
    let limits = limits.to_vec();
    move |parts| {
        let said = |name: &str| parts.headers.get(name).map(|value| value.to_str()).transpose();
        let Some(user) = said("x-user")? else { return Ok(None) };
        let mut wanted = LimitRequest::new(user, "api").limits(limits.clone());
        if let Some(parent) = said("x-project")? {
            wanted = wanted.cascade_to(parent);
        }
        if let Some(tokens) = said("x-tokens")? {
            wanted = wanted.consume("tpm", tokens.parse().map_err(|_| StatusCode::BAD_REQUEST)?);
        }
        Ok(Some(wanted.consume("rpm", 1)))
    }
}

type Extracted = Result<Option<LimitRequest>, Rejection>;

/// A router behind the layer. `/` answers at once, `/adjust` first takes `tpm` by its `x-by`,
/// `/fail` gives the permit back.
fn app(limiter: &Limiter, limits: &[Limit]) -> Router {
    let adjust = |request: Request| async move {
        let permit = request.extensions().get::<Arc<Permit>>().unwrap();
        let by = request.headers()["x-by"].to_str().unwrap().parse().unwrap();
        permit.adjust("tpm", by).await.unwrap();
    };
    let fail = |request: Request| async move {
        let permit = request.extensions().get::<Arc<Permit>>().unwrap().clone();
        permit.give_back().await.unwrap();
        permit.give_back().await.unwrap();
        StatusCode::BAD_GATEWAY
    };
    Router::new()
        .route("/", get(|| async { "done" }))
        .route("/adjust", get(adjust))
        .route("/fail", get(fail))
        .layer(RateLimitLayer::new(limiter.clone(), wanted(limits)))
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    /// The value of a field; nothing when it is absent. More than one line fails the test.
    fn field(&self, name: &str) -> &str {
        let lines: Vec<_> = self.headers.get_all(name).iter().collect();
        assert!(lines.len() < 2, "{name}: {lines:?}");
        lines.first().map_or("", |line| line.to_str().unwrap())
    }

    fn figures(&self) -> (u16, &str, &str) {
        (self.status, self.field("ratelimit-policy"), self.field("ratelimit"))
    }

    fn problem(&self) -> Value {
        assert_eq!(self.field("content-type"), "application/problem+json");
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A problem without a type of its own.
fn untyped(status: u16, title: &str, detail: &str) -> Value {
    json!({"type": "about:blank", "title": title, "status": status, "detail": detail})
}

async fn ask(app: &Router, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(to_bytes(body, 65_536).await.unwrap().to_vec()).unwrap();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// The current consumption of a limit, in millitokens; `None`: there is no bucket.
fn consumed(limiter: &Limiter, entity: &str, limit: &str) -> Option<i64> {
    let (entity, resource) = (EntityId::new(entity).unwrap(), Resource::new("api").unwrap());
    let bucket: Arc<_> =
        limiter.store::<MemoryStore>().unwrap().table().bucket(&BucketId { entity, resource })?;
    i64::try_from(bucket.limits[&LimitName::new(limit).unwrap()].consumed.get()).ok()
}
