//! A Lambda Runtime API on loopback, to drive the real `bootstrap` binary of a function.
//!
//! It serves the four routes that a runtime uses. Of Lambda's own behaviour it has only the
//! deadline: an invocation that is not answered in time is over. Nagle's algorithm is off, or every
//! invocation would wait 40 ms for a delayed acknowledgement.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// The name that functions get.
pub const FUNCTION_NAME: &str = "sluicegate-test";

/// The result of an invocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvocationResult {
    /// The handler returned this body.
    Response(Bytes),
    /// The handler, or the runtime for it, reported an error.
    Error(RuntimeError),
    /// The deadline passed without an answer.
    TimedOut,
}

/// An error as a runtime reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeError {
    /// `Lambda-Runtime-Function-Error-Type`, if it was sent.
    pub error_type: Option<String>,
    /// The body, JSON with `errorType` and `errorMessage`.
    pub body: Bytes,
}

/// A running Runtime API for one function. Dropping it closes its port.
pub struct RuntimeApi {
    address: SocketAddr,
    shared: Arc<Invocations>,
    _server: JoinSet<()>,
}

struct Invocations {
    queue: mpsc::UnboundedSender<Invocation>,
    /// Locked while a runtime waits for an event, so that several take turns.
    queued: tokio::sync::Mutex<mpsc::UnboundedReceiver<Invocation>>,
    under_way: Mutex<HashMap<String, oneshot::Sender<InvocationResult>>>,
    init_error: watch::Sender<Option<RuntimeError>>,
    count: AtomicU64,
}

struct Invocation {
    request_id: String,
    deadline_epoch_ms: u128,
    event: Bytes,
}

impl RuntimeApi {
    /// Starts the API; no function runs yet.
    ///
    /// # Panics
    /// If no port can be bound.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (queue, queued) = mpsc::unbounded_channel();
        let shared = Arc::new(Invocations {
            queue,
            queued: queued.into(),
            under_way: Mutex::default(),
            init_error: watch::Sender::default(),
            count: AtomicU64::new(0),
        });
        let routes = Router::new()
            .route("/invocation/next", get(next))
            .route("/invocation/{id}/response", post(response))
            .route("/invocation/{id}/error", post(error))
            .route("/init/error", post(init_error))
            // Lambda takes 6 MB.
            .layer(DefaultBodyLimit::max(6 * 1024 * 1024 + 1024))
            .with_state(shared.clone());
        let app = Router::new().nest("/2018-06-01/runtime", routes);
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let mut server = JoinSet::new();
        server.spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Self { address, shared, _server: server }
    }

    /// `127.0.0.1:<port>`, the form of `AWS_LAMBDA_RUNTIME_API`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Passes an event to the next runtime that asks, and waits for its answer, at most `deadline`.
    ///
    /// # Panics
    /// Never in a test that has not failed already.
    pub async fn invoke(&self, event: impl Into<Bytes>, deadline: Duration) -> InvocationResult {
        let number = self.shared.count.fetch_add(1, Ordering::Relaxed);
        let request_id = format!("00000000-0000-4000-8000-{number:012}");
        let (answer, answered) = oneshot::channel();
        self.shared.under_way.lock().unwrap().insert(request_id.clone(), answer);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let invocation = Invocation {
            request_id: request_id.clone(),
            deadline_epoch_ms: (now + deadline).as_millis(),
            event: event.into(),
        };
        self.shared.queue.send(invocation).unwrap();
        if let Ok(result) = tokio::time::timeout(deadline, answered).await {
            return result.unwrap();
        }
        self.shared.under_way.lock().unwrap().remove(&request_id);
        InvocationResult::TimedOut
    }

    /// Waits until a runtime reports that the function could not be initialised.
    ///
    /// # Panics
    /// Never in a test that has not failed already.
    pub async fn init_error(&self) -> RuntimeError {
        let mut reported = self.shared.init_error.subscribe();
        let error = reported.wait_for(Option::is_some).await.unwrap();
        error.clone().unwrap()
    }
}

async fn next(State(shared): State<Arc<Invocations>>) -> Response<Body> {
    let mut queued = shared.queued.lock().await;
    let invocation = loop {
        let invocation = queued.recv().await.unwrap();
        // An invocation that has timed out meanwhile is skipped.
        if shared.under_way.lock().unwrap().contains_key(&invocation.request_id) {
            break invocation;
        }
    };
    let arn = format!("arn:aws:lambda:us-east-1:000000000000:function:{FUNCTION_NAME}");
    Response::builder()
        .header("Lambda-Runtime-Aws-Request-Id", &invocation.request_id)
        .header("Lambda-Runtime-Deadline-Ms", invocation.deadline_epoch_ms.to_string())
        .header("Lambda-Runtime-Invoked-Function-Arn", arn)
        .header(
            "Lambda-Runtime-Trace-Id",
            "Root=1-00000000-000000000000000000000000;Parent=0000000000000000;Sampled=0",
        )
        .header("content-type", "application/json")
        .body(Body::from(invocation.event))
        .unwrap()
}

async fn response(
    State(shared): State<Arc<Invocations>>,
    Path(id): Path<String>,
    body: Bytes,
) -> StatusCode {
    shared.answer(&id, InvocationResult::Response(body))
}

async fn error(
    State(shared): State<Arc<Invocations>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    shared.answer(&id, InvocationResult::Error(RuntimeError::new(&headers, body)))
}

async fn init_error(
    State(shared): State<Arc<Invocations>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    shared.init_error.send_replace(Some(RuntimeError::new(&headers, body)));
    StatusCode::ACCEPTED
}

impl Invocations {
    fn answer(&self, id: &str, result: InvocationResult) -> StatusCode {
        match self.under_way.lock().unwrap().remove(id) {
            Some(waiting) => {
                // The caller may have stopped waiting.
                let _ = waiting.send(result);
                StatusCode::ACCEPTED
            }
            // As Lambda answers for an unknown, answered, or expired request id.
            None => StatusCode::BAD_REQUEST,
        }
    }
}

impl RuntimeError {
    fn new(headers: &HeaderMap, body: Bytes) -> Self {
        let kind = headers.get("lambda-runtime-function-error-type");
        let error_type = kind.and_then(|kind| kind.to_str().ok()).map(str::to_owned);
        Self { error_type, body }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};
    use hyper::{Method, Request};
    use hyper_util::client::legacy::Client;
    use hyper_util::client::legacy::connect::HttpConnector;
    use hyper_util::rt::TokioExecutor;

    use super::*;

    /// A runtime, driven by hand.
    struct Runtime {
        client: Client<HttpConnector, Full<Bytes>>,
        base: String,
    }

    impl Runtime {
        fn new(api: &RuntimeApi) -> Self {
            let client = Client::builder(TokioExecutor::new()).build_http();
            Self { client, base: format!("http://{}/2018-06-01/runtime", api.address()) }
        }

        async fn send(&self, method: Method, path: &str, body: &'static str) -> Response<Bytes> {
            let request = Request::builder()
                .method(method)
                .uri(format!("{}{path}", self.base))
                .header("Lambda-Runtime-Function-Error-Type", "Runtime.Odd")
                .body(Full::from(body))
                .unwrap();
            let (head, body) = self.client.request(request).await.unwrap().into_parts();
            Response::from_parts(head, body.collect().await.unwrap().to_bytes())
        }

        /// Takes an event; returns its request id and body.
        async fn next(&self) -> (String, Bytes, HeaderMap) {
            let (head, body) = self.send(Method::GET, "/invocation/next", "").await.into_parts();
            let id = head.headers["lambda-runtime-aws-request-id"].to_str().unwrap().to_owned();
            (id, body, head.headers)
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn events_go_to_the_runtime_and_answers_come_back() {
        let api = RuntimeApi::start().await;
        let runtime = Runtime::new(&api);
        let function = async {
            let (first, event, headers) = runtime.next().await;
            assert_eq!(event, "1");
            let deadline: u128 =
                headers["lambda-runtime-deadline-ms"].to_str().unwrap().parse().unwrap();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
            assert!((now..=now + 60_000).contains(&deadline));
            assert!(headers.contains_key("lambda-runtime-invoked-function-arn"));
            assert!(headers.contains_key("lambda-runtime-trace-id"));
            let path = format!("/invocation/{first}/response");
            assert_eq!(runtime.send(Method::POST, &path, "one").await.status(), 202);
            assert_eq!(runtime.send(Method::POST, &path, "again").await.status(), 400);

            let (second, event, _) = runtime.next().await;
            assert_eq!(event, "2");
            runtime.send(Method::POST, &format!("/invocation/{second}/error"), "{}").await;
        };
        let caller = async {
            assert_eq!(api.invoke("1", LONG).await, InvocationResult::Response("one".into()));
            let InvocationResult::Error(error) = api.invoke("2", LONG).await else { panic!() };
            assert_eq!(error.error_type.as_deref(), Some("Runtime.Odd"));
        };
        tokio::join!(function, caller);
    }

    #[tokio::test]
    async fn an_invocation_that_timed_out_is_not_handed_out_any_more() {
        let api = RuntimeApi::start().await;
        let runtime = Runtime::new(&api);
        assert_eq!(api.invoke("late", Duration::ZERO).await, InvocationResult::TimedOut);
        let (answer, ()) = tokio::join!(api.invoke("in time", LONG), async {
            let (id, event, _) = runtime.next().await;
            assert_eq!(event, "in time");
            runtime.send(Method::POST, &format!("/invocation/{id}/response"), "ok").await;
        });
        assert_eq!(answer, InvocationResult::Response("ok".into()));
    }

    #[tokio::test]
    async fn an_init_error_is_handed_over() {
        let api = RuntimeApi::start().await;
        let runtime = Runtime::new(&api);
        let (error, response) = tokio::join!(
            api.init_error(),
            runtime.send(Method::POST, "/init/error", r#"{"errorMessage":"TABLE_NAME"}"#)
        );
        assert_eq!(response.status(), 202);
        assert!(String::from_utf8_lossy(&error.body).contains("TABLE_NAME"));
    }
}
