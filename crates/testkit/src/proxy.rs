//! A proxy in front of an engine: counts requests by operation and injects faults.
//!
//! The counts are those of the server's side: the requests of a client, retries included. A fault
//! changes the one request that its policy chose and nothing else.

mod fault;
mod meter;
impl Proxy {
    /// Starts a proxy that counts units: it makes every request ask the engine for its cost.
    ///
    /// # Panics
    /// If no port can be bound.
    pub async fn start_metered(upstream: &str) -> Self {
        Self::start_with(upstream, Some(Mutex::default())).await
    }

    /// Closes the connection instead of sending the next answer that acknowledges a write. A policy
    /// cannot do that: it decides before there is an answer.
    pub fn lose_next_write(&self) {
        self.shared.loses_next_write.store(true, Ordering::Relaxed);
    }

    /// The capacity units since the last call; none unless the proxy is metered.
    ///
    /// # Panics
    /// Never in a test that has not failed already.
    pub fn take_units(&self) -> Units {
        let units = self.shared.units.as_ref();
        units.map(|units| std::mem::take(&mut *units.lock().unwrap())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::CONTENT_LENGTH;
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub use fault::{Call, Fault};
use fault::{blank, cancellation, refusal};
pub use meter::Units;
pub use wire::{Cut, Wire};

type Policy = Box<dyn Fn(&Call<'_>) -> Fault + Send + Sync>;

/// A running proxy. Dropping it closes its port and every connection.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Upstream>,
    _server: JoinSet<()>,
}

struct Upstream {
    upstream: String,
    client: Client<HttpConnector, Full<Bytes>>,
    policy: Mutex<Policy>,
    counts: Mutex<BTreeMap<String, Count>>,
    /// Only in a proxy that counts them: it makes every request ask for its cost.
    units: Option<Mutex<Units>>,
    loses_next_write: AtomicBool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    received: u64,
    forwarded: u64,
}

impl Proxy {
    /// Starts a proxy in front of `upstream` (`http://host:port`) that injects nothing yet.
    ///
    /// # Panics
    /// If no port can be bound.
    pub async fn start(upstream: &str) -> Self {
        Self::start_with(upstream, None).await
    }

    async fn start_with(upstream: &str, units: Option<Mutex<Units>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let shared = Arc::new(Upstream {
            upstream: upstream.trim_end_matches('/').to_owned(),
            client: Client::builder(TokioExecutor::new()).build(connector),
            policy: Mutex::new(Box::new(|_| Fault::None)),
            counts: Mutex::default(),
            units,
            loses_next_write: AtomicBool::default(),
        });
        let mut server = JoinSet::new();
        server.spawn(accept(listener, shared.clone()));
        Self { address, shared, _server: server }
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on, calls `policy` for every request.
    ///
    /// # Panics
    /// If an earlier policy panicked.
    pub fn inject(&self, policy: impl Fn(&Call<'_>) -> Fault + Send + Sync + 'static) {
        *self.shared.policy.lock().unwrap() = Box::new(policy);
    }

    /// The number of requests of an operation that arrived here, faulty ones included.
    pub fn received(&self, operation: &str) -> u64 {
        self.count(operation).received
    }

    /// The number of requests of an operation that were passed on to the engine.
    pub fn forwarded(&self, operation: &str) -> u64 {
        self.count(operation).forwarded
    }

    /// Every operation that arrived, with its requests.
    ///
    /// # Panics
    /// Never in a test that has not failed already.
    pub fn received_by_operation(&self) -> BTreeMap<String, u64> {
        let counts = self.shared.counts.lock().unwrap();
        counts.iter().map(|(name, count)| (name.clone(), count.received)).collect()
    }

    /// Starts counting from zero again; policies see numbers from 1 again.
    ///
    /// # Panics
    /// Never in a test that has not failed already.
    pub fn reset_counts(&self) {
        self.shared.counts.lock().unwrap().clear();
    }

    fn count(&self, operation: &str) -> Count {
        self.shared.counts.lock().unwrap().get(operation).copied().unwrap_or_default()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Upstream>) {
    // Owned by this task, so that the connections end with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(stream, shared.clone()));
    }
}

async fn serve(stream: TcpStream, shared: Arc<Upstream>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, &shared));
    // An error means that either side closed the connection, which clients may do and this proxy
    // does.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// The error of a service after which hyper closes the connection without a reply.
const CLOSED: &str = "closed on purpose";

async fn answer(
    request: Request<Incoming>,
    shared: &Arc<Upstream>,
) -> Result<Response<Full<Bytes>>, &'static str> {
    let operation = operation(request.headers());
    let (mut head, body) = request.into_parts();
    let mut body = body.collect().await.map_err(|_| CLOSED)?.to_bytes();
    let number = shared.note(&operation, |count| {
        count.received += 1;
        count.received
    });
    let call = Call { operation: &operation, number, body: &body };
    let fault = (shared.policy.lock().unwrap())(&call);
    match fault {
        Fault::None | Fault::LoseReply | Fault::Late(_) | Fault::BlankReply(_) => {}
        Fault::Delay(duration) => tokio::time::sleep(duration).await,
        Fault::Cut => return Err(CLOSED),
        Fault::Refuse { status, error } => return Ok(refusal(status, error, &json!({}))),
        Fault::Cancel(codes) => return Ok(cancellation(codes)),
        Fault::Blank(body) => return Ok(blank(body)),
    }
    if shared.units.is_some()
        && let Some(asking) = meter::asking(&operation, &body)
    {
        head.headers.remove(CONTENT_LENGTH);
        body = asking;
    }
    let forward = shared.forward(head, body);
    if let Fault::Late(duration) = fault {
        let shared = shared.clone();
        tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            let _ = shared.client.request(forward).await;
            // Noted only now: a test that waits for the count waits for the effect.
            shared.note(&operation, |count| count.forwarded += 1);
        });
        return Err(CLOSED);
    }
    shared.note(&operation, |count| count.forwarded += 1);
    let response = shared.client.request(forward).await.map_err(|_| CLOSED)?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|_| CLOSED)?.to_bytes();
    if let Some(units) = &shared.units {
        units.lock().unwrap().add(&operation, &body);
    }
    let is_done = head.status.is_success() && meter::is_write(&operation);
    if is_done && shared.loses_next_write.swap(false, Ordering::Relaxed) {
        return Err(CLOSED);
    }
    match fault {
        Fault::LoseReply => Err(CLOSED),
        Fault::BlankReply(instead) => Ok(blank(instead)),
        _ => Ok(Response::from_parts(head, Full::new(body))),
    }
}

impl Upstream {
    /// The same request, addressed to the engine.
    fn forward(&self, head: Parts, body: Bytes) -> Request<Full<Bytes>> {
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri: Uri = format!("{}{path}", self.upstream).parse().unwrap();
        let mut forward = Request::new(Full::new(body));
        *forward.method_mut() = head.method;
        *forward.headers_mut() = head.headers;
        *forward.uri_mut() = uri;
        forward
    }

    fn note<T>(&self, operation: &str, change: impl FnOnce(&mut Count) -> T) -> T {
        change(self.counts.lock().unwrap().entry(operation.to_owned()).or_default())
    }
}

/// `DynamoDB_20120810.UpdateItem` names `UpdateItem`; a request of another kind names nothing.
fn operation(headers: &HeaderMap) -> String {
    let target = headers.get("x-amz-target").and_then(|target| target.to_str().ok());
    let name = target.and_then(|target| target.rsplit('.').next());
    name.unwrap_or_default().to_owned()
}
