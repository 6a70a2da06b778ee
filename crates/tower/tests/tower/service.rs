//! The layer as a service among services.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::routing::get;
use http::{Request, Response};
use sluicegate::Limit;
use sluicegate_tower::{LimitRequest, RateLimitLayer};
use tower::{Layer, Service, ServiceExt};

use crate::{ask, limiter};

/// Fails when it is called before it was polled ready, as its clones start out.
#[derive(Default)]
struct Strict {
    is_ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false, calls: self.calls.clone() }
    }
}

impl Service<Request<()>> for Strict {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called before it was ready");
        self.calls.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new("done".to_owned())))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let (limiter, _) = limiter();
    let layer = RateLimitLayer::new(limiter, |parts| {
        let wanted = LimitRequest::new("u", "api").consume("rpm", 1);
        let is_limited = parts.uri.path() != "/health";
        Ok(is_limited.then(|| wanted.limits([Limit::per_minute("rpm", 2)])))
    });
    let inner = Strict::default();
    let calls = inner.calls.clone();
    let mut service = layer.layer(inner);
    let mut statuses = Vec::new();
    for path in ["/", "/health", "/", "/", "/health"] {
        let request = Request::get(path).body(()).unwrap();
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429, 200]);
    assert_eq!(calls.load(Ordering::Relaxed), 4, "what is refused goes no further");
}

#[tokio::test]
async fn two_layers_add_up_to_one_list() {
    let (limiter, _) = limiter();
    let layer = |limit: &'static str, tokens| {
        RateLimitLayer::new(limiter.clone(), move |_| {
            let limits = [Limit::per_minute(limit, tokens)];
            Ok(Some(LimitRequest::new("u", limit).consume(limit, 1).limits(limits)))
        })
    };
    let app = Router::new()
        .route("/", get(|| async {}))
        .layer(layer("route", 10))
        .layer(layer("gateway", 20));
    let answer = ask(&app, "/", &[]).await;
    let lines: Vec<_> = answer.headers.get_all("ratelimit").iter().collect();
    assert_eq!(lines, [r#""route";r=9;t=6"#, r#""gateway";r=19;t=3"#]);
}
