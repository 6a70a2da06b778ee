//! A server under test, and a client for it.

use axum::body::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use sluicegate::{DynamoStore, Limiter, MemoryStore};
use sluicegate_local::client;
use sluicegate_server::{Config, Reloader, Server};
use sluicegate_testkit::Proxy;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server on a free port. Dropping it ends the server.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) reloader: Reloader,
    client: Client<HttpConnector, Full<Bytes>>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    task: JoinHandle<()>,
}

/// An answer with its JSON body; `Null` if it has none.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// A configuration in JSON.
pub(crate) fn config(json: Value) -> Config {
    let mut json = json;
    json["listen"] = serde_json::json!({"address": "127.0.0.1:0"});
    serde_json::from_value(json).unwrap()
}

/// A limiter on the table behind the proxy, whose calls may take long.
pub(crate) fn patient(proxy: &Proxy, table: &str) -> Limiter {
    let store = DynamoStore::new(client::dynamodb(&proxy.endpoint_url()), table);
    Limiter::builder(store).deadline(Duration::from_secs(20)).build()
}

/// Waits for a first call.
pub(crate) async fn asked(proxy: &Proxy) {
    while proxy.received_by_operation().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl Running {
    /// A server with this configuration, whose balances are in memory.
    pub(crate) async fn in_memory(json: Value) -> Self {
        Self::start(config(json), Limiter::new(MemoryStore::new())).await
    }

    pub(crate) async fn start(config: Config, limiter: Limiter) -> Self {
        let server = Server::bind(config, limiter).await.unwrap();
        let (address, reloader) = (server.address(), server.reloader());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run_until(async {
            let _ = stopped.await;
        }));
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, reloader, client, stop: Mutex::new(Some(stop)), task }
    }

    /// Sends a request with a body in JSON; with `Null`, without a body.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.send_bytes(method, path, headers, body).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], &Value::Null).await
    }

    pub(crate) async fn send_bytes(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Answer {
        let mut request =
            Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// The body of an answer that is not JSON.
    pub(crate) async fn text(&self, path: &str) -> String {
        let url = format!("http://{}{path}", self.address).parse().unwrap();
        let body = self.client.get(url).await.unwrap().into_body().collect().await.unwrap();
        String::from_utf8(body.to_bytes().to_vec()).unwrap()
    }

    /// Asks the server to end.
    pub(crate) fn ask_to_end(&self) {
        self.stop.lock().unwrap().take();
    }

    /// Waits until the server has ended.
    pub(crate) async fn ended(self) {
        self.ask_to_end();
        self.task.await.unwrap();
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn permit(&self) -> String {
        self.body["permit"].as_str().unwrap().to_owned()
    }
}
