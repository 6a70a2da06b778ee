//! The servers among the examples, on the engine that they start without an environment, by a clock
//! that the tests move.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests panic")]
#![allow(clippy::duplicate_mod, reason = "each example brings its own copy of what both share")]

#[path = "../../examples/axum.rs"]
#[allow(dead_code, reason = "its main function")]
mod echo;
#[path = "../../examples/gateway.rs"]
#[allow(dead_code, reason = "its main function")]
mod gateway;

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use http::HeaderMap;
use sluicegate::{Clock, DynamoStore, Limiter, SystemClock, TestClock};
use sluicegate_local::{EmbeddedEngine, Storage, client, table};
use tower::ServiceExt;

struct Running {
    engine: EmbeddedEngine,
    clock: TestClock,
    app: Router,
}

impl Running {
    async fn start(app: impl FnOnce(Limiter<DynamoStore, TestClock>) -> Router) -> Self {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        let client = client::dynamodb(&engine.endpoint_url());
        table::create_table(&client, "limits").await.unwrap();
        let clock = TestClock::at(SystemClock.now());
        let limiter = Limiter::with_clock(DynamoStore::new(client, "limits"), clock.clone());
        // The machine may be busy, and the deadline is by its own clock.
        Self { engine, clock, app: app(limiter.deadline(Duration::from_secs(60))) }
    }

    async fn ask(&self, request: http::request::Builder, body: String) -> Answer {
        let request: Request = request.body(Body::from(body)).unwrap();
        let (parts, body) = self.app.clone().oneshot(request).await.unwrap().into_parts();
        let body = String::from_utf8(to_bytes(body, 65_536).await.unwrap().to_vec()).unwrap();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn get(&self, uri: &str) -> Answer {
        self.ask(Request::get(uri), String::new()).await
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

#[tokio::test]
async fn a_gateway_refuses_until_retry_after() {
    let gateway = Running::start(gateway::app).await;
    for (left, reset) in [(4, 12), (3, 24), (2, 36), (1, 48), (0, 60)] {
        let passed = gateway.get("/check?api_key=alice").await;
        assert_eq!((passed.status, passed.body.as_str()), (200, "pass\n"));
        assert_eq!(passed.field("ratelimit-policy"), Some(r#""rpm";q=5;w=60"#));
        let expected = format!(r#""rpm";r={left};t={reset}"#);
        assert_eq!(passed.field("ratelimit"), Some(expected.as_str()));
    }
    let refused = gateway.get("/check?api_key=alice").await;
    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("12")));
    assert_eq!(refused.field("ratelimit-policy"), Some(r#""rpm";q=5;w=60"#));
    assert_eq!(refused.field("ratelimit"), Some(r#""rpm";r=0;t=12"#));
    assert_eq!(refused.field("content-type"), Some("application/problem+json"));
    assert!(refused.body.contains(r#""violated-policies":["rpm"]"#), "{}", refused.body);
    // Another key has requests of its own, whatever it is spelt with.
    assert_eq!(gateway.get("/check?api_key=b%23b%0a").await.status, 200);

    gateway.clock.advance(Duration::from_secs(11));
    let refused = gateway.get("/check?api_key=alice").await;
    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("1")));
    gateway.clock.advance(Duration::from_secs(1));
    let passed = gateway.get("/check?api_key=alice").await;
    assert_eq!((passed.status, passed.field("ratelimit")), (200, Some(r#""rpm";r=0;t=60"#)));

    for nobody in ["/check", "/check?api_key=", "/check?other=1"] {
        let rejected = gateway.get(nobody).await;
        assert_eq!((rejected.status, rejected.field("ratelimit")), (400, None), "{nobody}");
    }
    gateway.engine.stop().await.unwrap();
}

#[tokio::test]
async fn a_gateway_writes_no_key_to_the_table() {
    let gateway = Running::start(gateway::app).await;
    gateway.get("/check?api_key=sk-secret").await;
    let client = client::dynamodb(&gateway.engine.endpoint_url());
    let items = client.scan().table_name("limits").send().await.unwrap().items.unwrap();
    assert_eq!(items.len(), 1);
    let key = items[0]["PK"].as_s().unwrap();
    // The first 128 bits of `printf sk-secret | sha256sum`.
    assert_eq!(key, "ENTITY#key-746b4ad1ca9129e1caf080bf9406d435");
    assert!(!format!("{items:?}").contains("sk-secret"), "{items:?}");
    gateway.engine.stop().await.unwrap();
}

#[tokio::test]
async fn an_echo_is_paid_by_its_length() {
    let echo = Running::start(echo::app).await;
    let user = |user: &str| Request::post("/echo").header("x-user", user);
    let short = echo.ask(user("alice"), "a few words".to_owned()).await;
    assert_eq!((short.status, short.body.as_str()), (200, "3 tokens: a few words\n"));
    assert_eq!(short.field("ratelimit"), Some(r#""rpm";r=4;t=12, "tpm";r=997;t=1"#));
    let long = echo.ask(user("bob"), "x".repeat(8_000)).await;
    assert_eq!(long.field("ratelimit"), Some(r#""rpm";r=4;t=12, "tpm";r=0;t=120"#));
    let indebted = echo.ask(user("bob"), String::new()).await;
    assert_eq!((indebted.status, indebted.field("retry-after")), (429, Some("66")));

    let unknown = echo.ask(Request::post("/echo"), String::new()).await;
    assert_eq!((unknown.status, unknown.field("www-authenticate")), (401, Some("X-User")));
    assert_eq!(echo.ask(user("a#b"), String::new()).await.status, 400);
    assert_eq!(echo.get("/health").await.status, 200);
    echo.engine.stop().await.unwrap();
}
