//! Decisions per second beside servers that decide nothing, and beside the library in process:
//! `cargo run --profile bench -p sluicegate-server --example load [SECONDS [STEADY]]`.
//!
//! * A bare axum handler and a bare tonic service answer a constant: an answer that the server gave.
//!   The server beside them decides from leased tokens.
//! * Without leasing, each decision waits for a write of the embedded engine; the library in process
//!   does the same.
//!
//! Clients, servers and the engine share this machine; they take turns of half a second. Rates are
//! compared within each round of turns, and the median of all rounds is printed: other programs on
//! the machine slow a whole round down. Then the leasing server has STEADY seconds without a pause, and after it the library in process has the same rate: the
//! writes of both stand beside each other, and the memory of the process before and after.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "an example that measures")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use sluicegate::{DynamoStore, LeaseSettings, Limit, LimitSet, Limiter};
use sluicegate_local::client;
use sluicegate_server::Server;
use sluicegate_testkit::{EngineKind, Proxy, RunningEngine};
use tokio::net::{TcpListener, TcpStream};
use tonic::{Request, Response, Status};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONNECTIONS: usize = 16;
const BODY: &str = r#"{"entity":"user-123","resource":"gpt-4","amounts":{"rpm":1,"tpm":500}}"#;

struct Constant(RateLimitResponse);

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

/// A server that decides nothing: it repeats an answer of another one.
async fn bare(deciding: SocketAddr) -> SocketAddr {
    let mut sender = connect(deciding).await;
    let (mut parts, body) = sender.send_request(acquire()).await.unwrap().into_parts();
    // The server writes them.
    for header in ["date", "content-length"] {
        parts.headers.remove(header);
    }
    let (headers, body) = (parts.headers, body.collect().await.unwrap().to_bytes());
    let mut client = RateLimitServiceClient::connect(format!("http://{deciding}")).await.unwrap();
    let answer = client.should_rate_limit(descriptor()).await.unwrap().into_inner();
    let service = RateLimitServiceServer::new(Constant(answer));
    let name = "/envoy.service.ratelimit.v3.RateLimitService/{*method}";
    let router = Router::new()
        .route("/v1/acquire", post(move || async move { (headers, body) }))
        .route_service(name, service);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// A server on a limiter.
async fn serving(limiter: Limiter) -> SocketAddr {
    let rules = json!({"domains": [{"domain": "edge", "rules": [{
        "match": {"user": "*"}, "entity": "{user}", "resource": "gpt-4", "consume": {"rpm": 1, "tpm": 500},
    }]}]});
    let config = json!({"listen": {"address": "127.0.0.1:0"}, "envoy": rules});
    let server = Server::bind(serde_json::from_value(config).unwrap(), limiter).await.unwrap();
    let address = server.address();
    tokio::spawn(server.run_until(std::future::pending()));
    address
}

/// A limiter on a new table of the engine, and the writes that the table gets from it.
async fn limiter(engine: &RunningEngine, is_leasing: bool) -> (Limiter, Proxy) {
    let (table, proxy) = (engine.create_table().await, Proxy::start(engine.endpoint_url()).await);
    let store = DynamoStore::new(client::dynamodb(&proxy.endpoint_url()), table);
    let most = 1_000_000_000;
    let limits =
        LimitSet::new([Limit::per_minute("rpm", most), Limit::per_minute("tpm", most * 1_000)]);
    let builder = Limiter::builder(store).default_limits(limits.unwrap());
    let limiter = if is_leasing {
        builder.leasing(LeaseSettings::default()).build()
    } else {
        builder.build()
    };
    (limiter, proxy)
}

fn writes(proxy: &Proxy) -> u64 {
    ["PutItem", "UpdateItem"].into_iter().map(|operation| proxy.received(operation)).sum()
}

async fn connect(address: SocketAddr) -> http1::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn acquire() -> http::Request<Full<Bytes>> {
    http::Request::post("/v1/acquire")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(BODY.as_bytes())))
        .unwrap()
}

fn descriptor() -> RateLimitRequest {
    let entry = Entry { key: "user".to_owned(), value: "user-123".to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "edge".to_owned(), descriptors: vec![descriptor], hits_addend: 1 }
}

/// The counts of durations, by microsecond. It takes no memory as it grows.
struct Took(Vec<u64>);

impl Took {
    fn new() -> Self {
        Self(vec![0; 200_000])
    }

    fn add(&mut self, took: Duration) {
        let micros = usize::try_from(took.as_micros()).unwrap();
        let last = self.0.len() - 1;
        self.0[micros.min(last)] += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(count, more)| *count += more);
    }

    fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The duration that this share of all is not longer than, in microseconds.
    fn at(&self, percent: u64) -> u64 {
        let mut left = self.count() * percent / 100;
        let is_there = |count: &u64| {
            left = left.saturating_sub(*count);
            left == 0
        };
        self.0.iter().position(is_there).unwrap_or(self.0.len()) as u64
    }
}

/// Sends requests over one connection until the time is over.
async fn over_http(address: SocketAddr, until: Instant) -> Took {
    let (mut sender, mut took) = (connect(address).await, Took::new());
    while Instant::now() < until {
        let begin = Instant::now();
        sender.ready().await.unwrap();
        let answer = sender.send_request(acquire()).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
        took.add(begin.elapsed());
    }
    took
}

async fn over_grpc(address: SocketAddr, until: Instant) -> Took {
    let mut client = RateLimitServiceClient::connect(format!("http://{address}")).await.unwrap();
    let (request, mut took) = (descriptor(), Took::new());
    while Instant::now() < until {
        let begin = Instant::now();
        let answer = client.should_rate_limit(request.clone()).await.unwrap().into_inner();
        assert_eq!(answer.overall_code, 1);
        took.add(begin.elapsed());
    }
    took
}

async fn in_process(limiter: Limiter, until: Instant) -> Took {
    let mut took = Took::new();
    while Instant::now() < until {
        let begin = Instant::now();
        acquire_of(&limiter).await;
        took.add(begin.elapsed());
    }
    took
}

async fn acquire_of(limiter: &Limiter) {
    let request = limiter.acquire("user-123", "gpt-4").consume("rpm", 1).consume("tpm", 500);
    request.await.unwrap();
}

/// Acquires in process at a rate for some seconds.
async fn at_rate(limiter: &Limiter, per_second: u64, seconds: u64) {
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    for _ in 0..seconds * 1_000 {
        ticks.tick().await;
        for _ in 0..per_second / 1_000 {
            acquire_of(limiter).await;
        }
    }
}

/// The memory of this process, in mebibytes.
fn memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() / 256
}

#[tokio::main]
async fn main() {
    let argument = |n| std::env::args().nth(n).map(|seconds| seconds.parse::<u64>().unwrap());
    let seconds = argument(1).unwrap_or(10);
    let steady = argument(2).unwrap_or(seconds);
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let (leasing, of_leasing) = limiter(&engine, true).await;
    let leasing = serving(leasing).await;
    let (unleased, _of_unleased) = limiter(&engine, false).await;
    let serving_unleased = serving(unleased.clone()).await;
    // The balances of a bucket are known after its first lease.
    over_http(leasing, Instant::now() + Duration::from_millis(100)).await;
    let bare = bare(leasing).await;
    let mut all: [Took; 6] = std::array::from_fn(|_| Took::new());
    let mut counts = [const { Vec::new() }; 6];
    for round in 0..=2 * seconds {
        for (n, took) in all.iter_mut().enumerate() {
            let until = Instant::now() + Duration::from_millis(500);
            let one = |_: usize| -> BoxFuture<'static, Took> {
                match n {
                    0 => over_http(bare, until).boxed(),
                    1 => over_http(leasing, until).boxed(),
                    2 => over_grpc(bare, until).boxed(),
                    3 => over_grpc(leasing, until).boxed(),
                    4 => in_process(unleased.clone(), until).boxed(),
                    _ => over_http(serving_unleased, until).boxed(),
                }
            };
            let tasks: Vec<_> = (0..CONNECTIONS).map(|c| tokio::spawn(one(c))).collect();
            let before = took.count();
            for task in tasks {
                let more = task.await.unwrap();
                // The first round warms up.
                if round > 0 {
                    took.merge(&more);
                }
            }
            if round > 0 {
                counts[n].push(took.count() - before);
            }
        }
    }
    println!("| | requests/s | | p50 us | p99 us | |\n|---|--:|--:|--:|--:|--:|");
    let names = [
        "axum, a constant",
        "the server, leased",
        "tonic, a constant",
        "the server, leased, gRPC",
        "the library, unleased",
        "the server, unleased",
    ];
    #[expect(clippy::cast_precision_loss, reason = "ratios")]
    let ratio = |a: u64, b: u64| a as f64 / b as f64;
    for (n, (took, name)) in all.iter().zip(names).enumerate() {
        let base = n / 2 * 2;
        let rounds = counts[n].iter().zip(&counts[base]);
        let mut rates: Vec<f64> = rounds.map(|(count, base)| ratio(*count, *base)).collect();
        rates.sort_by(f64::total_cmp);
        let rate = rates[rates.len() / 2];
        let (p50, p99, slower) = (took.at(50), took.at(99), ratio(took.at(99), all[base].at(99)));
        let per_second = took.count() / seconds;
        println!("| {name} | {per_second} | {rate:.2}x | {p50} | {p99} | {slower:.2}x |");
    }
    let (before, memory_before) = (writes(&of_leasing), memory());
    let until = Instant::now() + Duration::from_secs(steady);
    let tasks = (0..CONNECTIONS).map(|_| tokio::spawn(over_http(leasing, until)));
    let took = futures_util::future::join_all(tasks).await.into_iter().map(Result::unwrap);
    let per_second = took.map(|took| took.count()).sum::<u64>() / steady;
    let (of_server, memory_after) = (writes(&of_leasing) - before, memory());
    let (library, of_library) = limiter(&engine, true).await;
    at_rate(&library, per_second, steady).await;
    let of_library = writes(&of_library);
    println!(
        "\n{steady} s at {per_second} decisions/s: {of_server} writes of the server, {of_library} of the library"
    );
    println!("memory: {memory_before} MiB before, {memory_after} MiB after");
}
