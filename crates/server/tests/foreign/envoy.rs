//! A running Envoy in front of a service that answers everything.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use axum::Router;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use sluicegate_testkit::{dying_with_this_thread, engine};
use tokio::task::JoinHandle;

/// Longer than Envoy needs to start, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Dropping it ends Envoy and the service.
pub(crate) struct Envoy {
    child: Child,
    upstream: JoinHandle<()>,
    client: Client<HttpConnector, Empty<axum::body::Bytes>>,
    address: String,
    _folder: tempfile::TempDir,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    headers: HeaderMap,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Envoy {
    /// An Envoy that asks these servers. If none answers, it denies a request or lets it pass.
    pub(crate) async fn start(servers: &[SocketAddr], denies: bool) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = Router::new().fallback(|| async { "hello\n" });
        let upstream = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });

        let folder = tempfile::tempdir().unwrap();
        let (file, admin) = (folder.path().join("envoy.yaml"), folder.path().join("admin"));
        let mut endpoints = String::new();
        for server in servers {
            let (address, port) = (server.ip(), server.port());
            let comma = if endpoints.is_empty() { "" } else { ", " };
            write!(endpoints, "{comma}{{endpoint: {{address: {{socket_address: {{address: {address}, port_value: {port}}}}}}}}}").unwrap();
        }
        let text = include_str!("envoy.yaml")
            .replace("UPSTREAM}", &format!("{port}}}"))
            .replace("[SERVERS]", &format!("[{endpoints}]"))
            .replace("failure_mode_deny: DENY", &format!("failure_mode_deny: {denies}"));
        std::fs::write(&file, text).unwrap();
        let program = engine("envoy/bin/envoy");
        assert!(program.exists(), "Envoy is missing; install it with `cargo xtask engines envoy`");
        let child = dying_with_this_thread(program)
            .arg("-c")
            .arg(&file)
            .arg("--admin-address-path")
            .arg(&admin)
            .args(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut envoy = Self { child, upstream, client, address: String::new(), _folder: folder };
        let address = async {
            loop {
                if let Ok(admin) = std::fs::read_to_string(&admin)
                    && let Some(address) = envoy.listener(&admin).await
                {
                    break address;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        envoy.address = tokio::time::timeout(PATIENCE, address).await.expect("Envoy starts");
        envoy
    }

    /// The address that Envoy listens on, by its administration.
    async fn listener(&self, admin: &str) -> Option<String> {
        let url = format!("http://{admin}/listeners?format=json").parse().ok()?;
        let body = self.client.get(url).await.ok()?.into_body().collect().await.ok()?.to_bytes();
        let listeners: Value = serde_json::from_slice(&body).ok()?;
        let address = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
        Some(format!("{}:{}", address["address"].as_str()?, address["port_value"]))
    }

    /// A request of a user.
    pub(crate) async fn get(&self, path: &str, user: &str, tokens: u32) -> Answer {
        let request = http::Request::get(format!("http://{}{path}", self.address))
            .header("x-user", user)
            .header("x-tokens", tokens)
            .body(Empty::new())
            .unwrap();
        let response = self.client.request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        body.collect().await.unwrap();
        Answer { status: parts.status, headers: parts.headers }
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        self.upstream.abort();
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
