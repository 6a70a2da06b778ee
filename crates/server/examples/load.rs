//! Decisions per second beside servers that decide nothing: `cargo run --profile bench -p
//! sluicegate-server --example load [SECONDS]`.
//!
//! The server decides from leased tokens. Beside it, a bare axum handler and a bare tonic service
//! answer a constant: an answer that the server gave. Clients and servers share this machine; the four
//! take turns of a second.
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
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use sluicegate::{LeaseSettings, Limit, LimitSet, Limiter, MemoryStore};
use sluicegate_server::{Config, Server};
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

/// The server, which leases.
async fn deciding() -> SocketAddr {
    let rules = json!({"domains": [{"domain": "edge", "rules": [{
        "match": {"user": "*"}, "entity": "{user}", "resource": "gpt-4", "consume": {"rpm": 1, "tpm": 500},
    }]}]});
    let config: Config =
        serde_json::from_value(json!({"listen": {"address": "127.0.0.1:0"}, "envoy": rules}))
            .unwrap();
    let most = 1_000_000_000;
    let limits =
        LimitSet::new([Limit::per_minute("rpm", most), Limit::per_minute("tpm", most * 1_000)]);
    let limiter = Limiter::builder(MemoryStore::new())
        .default_limits(limits.unwrap())
        .leasing(LeaseSettings::default())
        .build();
    let server = Server::bind(config, limiter).await.unwrap();
    let address = server.address();
    tokio::spawn(server.run_until(std::future::pending()));
    address
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

/// Sends requests over one connection until the time is over; returns how long each took.
async fn over_http(address: SocketAddr, until: Instant) -> Vec<Duration> {
    let mut sender = connect(address).await;
    let mut took = Vec::new();
    while Instant::now() < until {
        let begin = Instant::now();
        sender.ready().await.unwrap();
        let answer = sender.send_request(acquire()).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
        took.push(begin.elapsed());
    }
    took
}

async fn over_grpc(address: SocketAddr, until: Instant) -> Vec<Duration> {
    let mut client = RateLimitServiceClient::connect(format!("http://{address}")).await.unwrap();
    let request = descriptor();
    let mut took = Vec::new();
    while Instant::now() < until {
        let begin = Instant::now();
        let answer = client.should_rate_limit(request.clone()).await.unwrap().into_inner();
        assert_eq!(answer.overall_code, 1);
        took.push(begin.elapsed());
    }
    took
}

#[tokio::main]
async fn main() {
    let seconds: u32 = std::env::args().nth(1).map_or(10, |seconds| seconds.parse().unwrap());
    let deciding = deciding().await;
    // The balances of a bucket are known after its first lease.
    over_http(deciding, Instant::now() + Duration::from_millis(100)).await;
    let bare = bare(deciding).await;
    let mut took: [Vec<Duration>; 4] = Default::default();
    for turn in 0..=seconds {
        for (n, samples) in took.iter_mut().enumerate() {
            let address = if n % 2 == 0 { bare } else { deciding };
            let until = Instant::now() + Duration::from_secs(1);
            let one = |_| async move {
                if n < 2 {
                    over_http(address, until).await
                } else {
                    over_grpc(address, until).await
                }
            };
            let tasks: Vec<_> = (0..CONNECTIONS).map(|c| tokio::spawn(one(c))).collect();
            for task in tasks {
                let more = task.await.unwrap();
                // The first turn warms up.
                if turn > 0 {
                    samples.extend(more);
                }
            }
        }
    }
    println!("| server | requests/s | | p50 us | p99 us | |\n|---|--:|--:|--:|--:|--:|");
    let names =
        ["axum, a constant", "sluicegate, leased", "tonic, a constant", "sluicegate, leased"];
    let mut base = (0, Duration::ZERO);
    for (n, (samples, name)) in took.iter_mut().zip(names).enumerate() {
        samples.sort_unstable();
        let at = |share: usize| samples[samples.len() * share / 100];
        let (count, p99) = (samples.len(), at(99));
        if n % 2 == 0 {
            base = (count, p99);
        }
        let ratio = |a: f64, b: f64| a / b;
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let rate = ratio(count as f64, base.0 as f64);
        let slower = ratio(p99.as_secs_f64(), base.1.as_secs_f64());
        let rps = count / seconds as usize;
        let (p50, p99) = (at(50).as_micros(), p99.as_micros());
        println!("| {name} | {rps} | {rate:.2}x | {p50} | {p99} | {slower:.2}x |");
    }
}
