//! A proxy in front of an engine: counts requests by operation and injects faults.
//!
//! The counts are those of the server's side: what a client sent, retries included. A fault changes
//! the one request that its policy chose and nothing else.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A request, as a policy sees it.
#[derive(Debug)]
pub struct Call<'a> {
    /// The operation, such as `UpdateItem`.
    pub operation: &'a str,
    /// Its number among the requests of this operation, from 1.
    pub number: u64,
    /// The request's JSON.
    pub body: &'a [u8],
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: forward it.
    None,
    /// Answer this error without forwarding.
    Refuse {
        /// HTTP status, 400 or 500.
        status: u16,
        /// Error type as DynamoDB spells it, with its namespace.
        error: &'static str,
    },
    /// Answer that a transaction was cancelled, without forwarding: a code for each of its items,
    /// `None` for those that were not the reason.
    Cancel(&'static [&'static str]),
    /// Forward it after this time.
    Delay(Duration),
    /// Close the connection at once and forward it after this time: a write that lands when the
    /// client has long given it up.
    Late(Duration),
    /// Forward it, then close the connection instead of replying: the write landed, nobody knows.
    LoseReply,
    /// Close the connection without forwarding.
    Cut,
}

impl Fault {
    /// The table's or partition's throughput is exceeded.
    pub const THROTTLED: Self = Self::Refuse {
        status: 400,
        error: "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
    };
    /// The account or an on-demand table is throttled.
    pub const THROTTLING: Self =
        Self::Refuse { status: 400, error: "com.amazon.coral.availability#ThrottlingException" };
    /// DynamoDB failed internally.
    pub const INTERNAL: Self =
        Self::Refuse { status: 500, error: "com.amazonaws.dynamodb.v20120810#InternalServerError" };
    /// A transaction is writing the same item.
    pub const CONFLICT: Self = Self::Refuse {
        status: 400,
        error: "com.amazonaws.dynamodb.v20120810#TransactionConflictException",
    };
    /// The credentials do not allow it.
    pub const DENIED: Self =
        Self::Refuse { status: 400, error: "com.amazon.coral.service#AccessDeniedException" };
}

type Policy = Box<dyn Fn(&Call<'_>) -> Fault + Send + Sync>;

/// A running proxy. Dropping it closes its port and every connection.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _server: JoinSet<()>,
}

struct Shared {
    upstream: String,
    client: Client<HttpConnector, Full<Bytes>>,
    policy: Mutex<Policy>,
    counts: Mutex<BTreeMap<String, Count>>,
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
    /// When no port can be bound.
    pub async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let shared = Arc::new(Shared {
            upstream: upstream.trim_end_matches('/').to_owned(),
            client: Client::builder(TokioExecutor::new()).build(connector),
            policy: Mutex::new(Box::new(|_| Fault::None)),
            counts: Mutex::default(),
        });
        let mut server = JoinSet::new();
        server.spawn(accept(listener, shared.clone()));
        Self { address, shared, _server: server }
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on, asks `policy` about every request.
    ///
    /// # Panics
    /// When an earlier policy panicked.
    pub fn inject(&self, policy: impl Fn(&Call<'_>) -> Fault + Send + Sync + 'static) {
        *self.shared.policy.lock().unwrap() = Box::new(policy);
    }

    /// Requests of an operation that arrived here, faulty ones included.
    pub fn received(&self, operation: &str) -> u64 {
        self.count(operation).received
    }

    /// Requests of an operation that were passed on to the engine.
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

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Owned by this task, so that the connections end with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(stream, shared.clone()));
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, &shared));
    // An error is a connection that either side closed: a client's right, and this proxy's purpose.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Closes the connection without a reply, which is what hyper does when a service fails.
#[derive(Debug)]
struct Close;

impl std::fmt::Display for Close {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed on purpose")
    }
}

impl std::error::Error for Close {}

impl From<Infallible> for Close {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: &Arc<Shared>,
) -> Result<Response<Full<Bytes>>, Close> {
    let operation = operation(request.headers());
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Close)?.to_bytes();
    let number = shared.note(&operation, |count| {
        count.received += 1;
        count.received
    });
    let call = Call { operation: &operation, number, body: &body };
    let fault = (shared.policy.lock().unwrap())(&call);
    match fault {
        Fault::None | Fault::LoseReply | Fault::Late(_) => {}
        Fault::Delay(duration) => tokio::time::sleep(duration).await,
        Fault::Cut => return Err(Close),
        Fault::Refuse { status, error } => return Ok(refusal(status, error, &json!({}))),
        Fault::Cancel(codes) => return Ok(cancellation(codes)),
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let uri: Uri = format!("{}{path}", shared.upstream).parse().unwrap();
    let mut forward = Request::new(Full::new(body));
    *forward.method_mut() = head.method;
    *forward.headers_mut() = head.headers;
    *forward.uri_mut() = uri;
    if let Fault::Late(duration) = fault {
        let shared = shared.clone();
        tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            let _ = shared.client.request(forward).await;
            // Only now: who waits for it waits for its effect.
            shared.note(&operation, |count| count.forwarded += 1);
        });
        return Err(Close);
    }
    shared.note(&operation, |count| count.forwarded += 1);
    let response = shared.client.request(forward).await.map_err(|_| Close)?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|_| Close)?.to_bytes();
    if fault == Fault::LoseReply {
        return Err(Close);
    }
    Ok(Response::from_parts(head, Full::new(body)))
}

impl Shared {
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

fn cancellation(codes: &[&str]) -> Response<Full<Bytes>> {
    let reason = |code: &&str| json!({"Code": code, "Message": "injected by a test"});
    let reasons: Vec<_> = codes.iter().map(reason).collect();
    let error = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException";
    refusal(400, error, &json!({"CancellationReasons": reasons}))
}

fn refusal(status: u16, error: &str, more: &Value) -> Response<Full<Bytes>> {
    let mut body = json!({"__type": error, "message": "injected by a test"});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    Response::builder()
        .status(status)
        .header("content-type", "application/x-amz-json-1.0")
        .body(Full::from(body.to_string()))
        .unwrap()
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::Client as DynamoDb;
    use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
    use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
    use aws_sdk_dynamodb::types::AttributeValue;
    use sluicegate_local::client;

    use super::*;
    use crate::{EngineKind, RunningEngine};

    /// An engine, a proxy in front of it, a client through the proxy, and a table.
    async fn set_up() -> (RunningEngine, Proxy, DynamoDb, String) {
        let engine = RunningEngine::start(EngineKind::Embedded).await;
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let client = client::dynamodb(&proxy.endpoint_url());
        (engine, proxy, client, table)
    }

    type Updated = Result<(), aws_sdk_dynamodb::error::SdkError<UpdateItemError>>;

    async fn add_one(client: &DynamoDb, table: &str) -> Updated {
        let update = client
            .update_item()
            .table_name(table)
            .key("PK", AttributeValue::S("p".into()))
            .key("SK", AttributeValue::S("s".into()))
            .update_expression("ADD n :one")
            .expression_attribute_values(":one", AttributeValue::N("1".into()));
        update.send().await.map(drop)
    }

    /// What the engine holds, asked behind the proxy's back.
    async fn stored(engine: &RunningEngine, table: &str) -> u64 {
        let items = engine.client().scan().table_name(table).send().await.unwrap();
        items.items().first().map_or(0, |item| item["n"].as_n().unwrap().parse().unwrap())
    }

    #[tokio::test]
    async fn requests_are_counted_by_operation() {
        let (engine, proxy, client, table) = set_up().await;
        add_one(&client, &table).await.unwrap();
        add_one(&client, &table).await.unwrap();
        client.scan().table_name(&table).send().await.unwrap();
        let counts = proxy.received_by_operation();
        assert_eq!(counts, [("Scan".into(), 1), ("UpdateItem".into(), 2)].into());
        assert_eq!((proxy.forwarded("UpdateItem"), proxy.received("Query")), (2, 0));
        proxy.reset_counts();
        assert_eq!(proxy.received("UpdateItem"), 0);
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_policy_chooses_by_operation_number_and_body() {
        let (engine, proxy, client, table) = set_up().await;
        proxy.inject(|call| {
            assert!(call.body.starts_with(b"{"));
            match (call.operation, call.number) {
                ("UpdateItem", 1) => Fault::THROTTLED,
                ("UpdateItem", 2) => Fault::THROTTLING,
                ("UpdateItem", 3) => Fault::INTERNAL,
                _ => Fault::None,
            }
        });
        let throttled = add_one(&client, &table).await.unwrap_err().into_service_error();
        assert!(throttled.is_provisioned_throughput_exceeded_exception());
        let throttling = add_one(&client, &table).await.unwrap_err().into_service_error();
        assert_eq!(throttling.meta().code(), Some("ThrottlingException"));
        let internal = add_one(&client, &table).await.unwrap_err();
        assert_eq!(internal.raw_response().unwrap().status().as_u16(), 500);
        assert!(internal.into_service_error().is_internal_server_error());
        add_one(&client, &table).await.unwrap();
        assert_eq!((proxy.received("UpdateItem"), proxy.forwarded("UpdateItem")), (4, 1));
        assert_eq!(stored(&engine, &table).await, 1);
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_lost_reply_is_a_write_that_landed() {
        let (engine, proxy, client, table) = set_up().await;
        proxy.inject(|_| Fault::LoseReply);
        let error = add_one(&client, &table).await.unwrap_err();
        assert!(error.as_service_error().is_none() && error.raw_response().is_none(), "{error:?}");
        assert_eq!(stored(&engine, &table).await, 1);
        // Nobody between the client and the engine sent it twice.
        assert_eq!((proxy.received("UpdateItem"), proxy.forwarded("UpdateItem")), (1, 1));
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_cut_connection_is_a_write_that_did_not() {
        let (engine, proxy, client, table) = set_up().await;
        // Once on a new connection, once on a kept one.
        add_one(&client, &table).await.unwrap();
        proxy.inject(|_| Fault::Cut);
        assert!(add_one(&client, &table).await.is_err());
        assert!(add_one(&client, &table).await.is_err());
        assert_eq!((proxy.received("UpdateItem"), proxy.forwarded("UpdateItem")), (3, 1));
        assert_eq!(stored(&engine, &table).await, 1);
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_late_write_lands_when_nobody_waits_for_it() {
        let (engine, proxy, client, table) = set_up().await;
        proxy.inject(|call| match call.number {
            1 => Fault::Late(Duration::from_millis(50)),
            _ => Fault::None,
        });
        assert!(add_one(&client, &table).await.is_err());
        add_one(&client, &table).await.unwrap();
        assert_eq!((stored(&engine, &table).await, proxy.forwarded("UpdateItem")), (1, 1));
        while proxy.forwarded("UpdateItem") < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(stored(&engine, &table).await, 2);
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_cancelled_transaction_says_why_item_by_item() {
        let (engine, proxy, client, _) = set_up().await;
        proxy.inject(|_| Fault::Cancel(&["None", "TransactionConflict"]));
        let error = client.transact_write_items().send().await.unwrap_err().into_service_error();
        let TransactWriteItemsError::TransactionCanceledException(cancelled) = error else {
            panic!("{error:?}")
        };
        let reasons = cancelled.cancellation_reasons().iter();
        let codes: Vec<_> = reasons.map(|reason| reason.code().unwrap()).collect();
        assert_eq!(codes, ["None", "TransactionConflict"]);
        assert_eq!(proxy.forwarded("TransactWriteItems"), 0);
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_delay_is_at_least_as_long_as_asked_for() {
        let (engine, proxy, client, table) = set_up().await;
        let delay = Duration::from_millis(50);
        proxy.inject(move |_| Fault::Delay(delay));
        let start = std::time::Instant::now();
        add_one(&client, &table).await.unwrap();
        assert!(start.elapsed() >= delay);
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_dropped_proxy_no_longer_listens() {
        let (engine, proxy, client, table) = set_up().await;
        add_one(&client, &table).await.unwrap();
        let address = proxy.address;
        drop(proxy);
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(add_one(&client, &table).await.is_err());
        engine.stop().await;
    }
}
