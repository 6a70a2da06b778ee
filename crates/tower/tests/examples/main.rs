//! The example servers, on the engine that they start without an environment, by a clock that the
//! tests move.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests panic")]
#![allow(clippy::duplicate_mod, reason = "each example brings its own copy of what both share")]

#[path = "../../examples/axum.rs"]
#[allow(dead_code, reason = "its main function")]
mod echo;
#[path = "../../examples/gateway.rs"]
#[allow(dead_code, reason = "its main function")]
mod gateway;
#[path = "../../examples/gateway_leased.rs"]
#[allow(dead_code, reason = "its main function")]
mod gateway_leased;

use std::net::Ipv4Addr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use http::HeaderMap;
use sluicegate::{
    Clock, DynamoStore, Limiter, LimiterBuilder, OnUnavailable, SystemClock, TestClock,
};
use sluicegate_local::poller::{Source as _, StreamSource};
use sluicegate_local::{EmbeddedEngine, Storage, client, table};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

struct Running {
    engine: EmbeddedEngine,
    clock: TestClock,
    app: Router,
}

fn patient(limiter: LimiterBuilder<DynamoStore>) -> Limiter {
    limiter.deadline(Duration::from_secs(60)).on_unavailable(OnUnavailable::Deny).build()
}

impl Running {
    async fn start(app: impl FnOnce(Limiter) -> Router) -> Self {
        Self::start_on(|store, clock| {
            // The machine may be busy, and the deadline uses the machine's own clock.
            app(patient(Limiter::builder(store).clock(clock)))
        })
        .await
    }

    async fn start_on(app: impl FnOnce(DynamoStore, TestClock) -> Router) -> Self {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        let client = client::dynamodb(&engine.endpoint_url());
        table::create_table(&client, "limits").await.unwrap();
        let clock = TestClock::at(SystemClock.now());
        let app = app(DynamoStore::new(client, "limits"), clock.clone());
        Self { engine, clock, app }
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
    // Another key has requests of its own, with any characters.
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

/// The number of writes to the table, from its stream.
async fn writes(engine: &EmbeddedEngine) -> usize {
    let client = client::dynamodb(&engine.endpoint_url());
    let arn = table::stream_arn(&client, "limits").await.unwrap();
    let stream = StreamSource::new(client::streams(&engine.endpoint_url()), arn);
    let mut writes = 0;
    for shard in stream.shards().await.unwrap() {
        writes += stream.read(&shard.id, None, 1_000).await.unwrap().records.len();
    }
    writes
}

/// The use of every key in the table, in thousandths.
async fn used(engine: &EmbeddedEngine) -> Vec<String> {
    let client = client::dynamodb(&engine.endpoint_url());
    let items = client.scan().table_name("limits").send().await.unwrap().items.unwrap();
    items.iter().map(|item| item["b_rph_tc"].as_n().unwrap().clone()).collect()
}

#[tokio::test]
async fn a_leased_gateway_writes_once_for_fifty_requests() {
    let mut limiter = None;
    let gateway = Running::start_on(|store, clock| {
        let leased =
            patient(Limiter::builder(store).clock(clock).leasing(gateway_leased::leases()));
        gateway_leased::app(limiter.insert(leased).clone())
    })
    .await;
    for n in 0..1_000 {
        assert_eq!(gateway.get("/check?api_key=alice").await.status, 200, "request {n}");
    }
    let refused = gateway.get("/check?api_key=alice").await;
    // A thousand an hour: one in 3.6 s.
    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("4")));
    let writes = writes(&gateway.engine).await;
    assert!(writes <= 21, "{writes} writes");
    let report = limiter.unwrap().shutdown(Duration::from_secs(60)).await;
    assert!(report.unsettled.is_empty(), "{report:?}");
    assert_eq!(used(&gateway.engine).await, ["1000000"]);
    gateway.engine.stop().await.unwrap();
}

#[tokio::test]
async fn a_leased_gateway_that_is_ended_tells_the_table_of_a_single_request() {
    let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
    let client = client::dynamodb(&engine.endpoint_url());
    table::create_table(&client, "limits").await.unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    let serving = gateway_leased::serve(listener, DynamoStore::new(client, "limits"));
    let serving = tokio::spawn(async move { serving.await.unwrap() });
    let mut bob = TcpStream::connect(at).await.unwrap();
    let request = b"GET /check?api_key=bob HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n";
    bob.write_all(request).await.unwrap();
    let mut answer = String::new();
    bob.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(used(&engine).await, [""; 0]);

    // This process handles the signal since it serves.
    let pid = std::process::id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let report = serving.await.unwrap();
    assert_eq!((report.settled, report.unsettled.len()), (1, 0), "{report:?}");
    assert_eq!(used(&engine).await, ["1000"]);
    engine.stop().await.unwrap();
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
