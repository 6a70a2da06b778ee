//! Serves the engine over HTTP on one loopback port, for programs on this machine only
//! (`access.rs`).
//!
//! An engine can be served on several ports: the port for its users can close while the poller
//! reads the rest through another one. The engine's own server is not used: it allows every web
//! page.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use dynoxide::Database;
use dynoxide::auth_material::{self, AuthMaterial};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::{Error, access, dispatch};

/// The time that [`Server::stop`] gives requests in flight.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// The pause of the server if the machine has no file descriptor for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// DynamoDB's own limit.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
const AMZ_DATE: HeaderName = HeaderName::from_static("x-amz-date");
const AMZ_JSON: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");
const TARGETS: [&str; 2] = ["DynamoDB_20120810.", "DynamoDBStreams_20120810."];

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
    /// Dropping the sender is the signal, so a dropped server stops without further code.
    stopping: oneshot::Sender<()>,
}

/// Binds a loopback port; 0 chooses a free one.
pub(crate) async fn listen(port: u16) -> Result<TcpListener, Error> {
    TcpListener::bind(("127.0.0.1", port)).await.map_err(|source| Error::Port { port, source })
}

impl Server {
    /// Serves `database` on the current tokio runtime.
    pub(crate) fn start(listener: TcpListener, database: Database) -> Result<Self, Error> {
        let address = listener.local_addr().map_err(Error::engine("listen"))?;
        let (stopping, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(serve(listener, database, stopped));
        Ok(Self { address, task, stopping })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:<port>`.
    pub(crate) fn endpoint_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops listening and lets requests in flight finish for up to five seconds.
    pub(crate) async fn stop(self) -> Result<(), Error> {
        let Self { mut task, stopping, .. } = self;
        drop(stopping);
        let Ok(ended) = tokio::time::timeout(STOP_GRACE, &mut task).await else {
            task.abort();
            return Ok(());
        };
        ended.map_err(Error::engine("stop"))
    }
}

async fn serve(listener: TcpListener, database: Database, mut stopped: oneshot::Receiver<()>) {
    let (stopping, _) = watch::channel(());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, database.clone(), stopping.subscribe()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop((listener, stopping, database));
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, database: Database, mut stopping: watch::Receiver<()>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(&database, request));
    let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    tokio::select! {
        // A client that disconnects early does not affect the others.
        _ = serving.as_mut() => return,
        // This channel is only ever closed.
        _ = stopping.changed() => {}
    }
    serving.as_mut().graceful_shutdown();
    let _ = serving.await;
}

async fn answer(
    database: &Database,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    if let Some(why) = access::refusal(&parts.uri, &parts.headers) {
        return Ok(response(StatusCode::FORBIDDEN, error("ForbiddenHostException", &why)));
    }
    match parts.method {
        Method::POST => {}
        Method::GET => return Ok(response(StatusCode::OK, "healthy\n".to_owned())),
        _ => {
            let why = "DynamoDB's operations are sent by POST";
            return Ok(response(StatusCode::NOT_FOUND, error("UnknownOperationException", why)));
        }
    }
    let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
        let why = format!("a request has at most {BODY_BYTES_MAX} bytes");
        return Ok(response(StatusCode::PAYLOAD_TOO_LARGE, error("SerializationException", &why)));
    };
    Ok(operation(database, &parts.uri, &parts.headers, &body.to_bytes()))
}

fn operation(
    database: &Database,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
) -> Response<Full<Bytes>> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let target = text(TARGET).unwrap_or_default();
    let name = TARGETS.iter().find_map(|prefix| target.strip_prefix(prefix)).unwrap_or_default();
    let refused = auth_material::validate(AuthMaterial {
        authorization: text(AUTHORIZATION),
        query: uri.query().unwrap_or_default(),
        has_date_header: headers.contains_key(AMZ_DATE) || headers.contains_key(DATE),
    });
    if let Some(refused) = refused {
        return response(StatusCode::BAD_REQUEST, refused);
    }
    match dispatch::answer(database, name, body) {
        None => {
            let why = format!("the engine has no operation {target:?}");
            response(StatusCode::BAD_REQUEST, error("UnknownOperationException", &why))
        }
        Some(Ok(answer)) => response(StatusCode::OK, answer),
        Some(Err(error)) => {
            let status = StatusCode::from_u16(error.status_code());
            response(status.unwrap_or(StatusCode::BAD_REQUEST), error.to_json())
        }
    }
}

/// An error of the server itself, in DynamoDB's format.
fn error(kind: &str, why: &str) -> String {
    let kind = format!("com.amazon.coral.service#{kind}");
    serde_json::json!({ "__type": kind, "message": why }).to_string()
}

fn response(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, AMZ_JSON);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::{EmbeddedEngine, LocalLoop, LoopOptions, Storage};

    /// Sends a request as a browser would and returns the whole answer.
    async fn sent(url: &str, request_line: &str, headers: &[&str]) -> String {
        let address = url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let body = r#"{"TableName":"sluicegate-access"}"#;
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let length = body.len();
        let request = format!(
            "{request_line} HTTP/1.1\r\n{headers}X-Amz-Target: DynamoDB_20120810.Scan\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=a, SignedHeaders=b, Signature=c\r\n\
             X-Amz-Date: 20260101T000000Z\r\nContent-Type: application/x-amz-json-1.0\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// The ports of a loop are the same server; each is tested nevertheless.
    #[tokio::test(flavor = "multi_thread")]
    async fn neither_port_answers_a_web_page() {
        let settings = sluicegate_processor::Settings::new("sluicegate-access");
        let storage = Storage::Temporary;
        let options = LoopOptions { port: 0, storage, settings, observer: None };
        let local = LocalLoop::start(options).await.unwrap();
        for url in local.ports() {
            let own = sent(&url, "POST /", &["Host: localhost:1"]).await;
            assert!(own.starts_with("HTTP/1.1 200"), "{own}");
            for (line, headers) in [
                (
                    "OPTIONS /",
                    &[
                        "Host: localhost",
                        "Origin: https://attacker.example",
                        "Access-Control-Request-Method: POST",
                        "Access-Control-Request-Headers: x-amz-target",
                    ][..],
                ),
                ("POST /", &["Host: localhost", "Origin: https://attacker.example"]),
                ("POST /", &["Host: localhost", "Origin: null"]),
                ("POST /", &["Host: attacker.example:8000"]),
                ("GET /", &["Host: attacker.example:8000"]),
                ("POST /other", &["Host: attacker.example"]),
                ("GET /other", &["Host: localhost", "Origin: https://attacker.example"]),
                ("POST http://attacker.example/", &["Host: localhost"]),
            ] {
                let answer = sent(&url, line, headers).await;
                assert!(answer.starts_with("HTTP/1.1 403"), "{line} {headers:?}: {answer}");
                let lower = answer.to_ascii_lowercase();
                assert!(!lower.contains("access-control-"), "{answer}");
                let body = answer.split("\r\n\r\n").nth(1).unwrap();
                assert!(!body.contains('\n') && body.contains("ForbiddenHost"), "{body}");
            }
        }
    }

    #[tokio::test]
    async fn unknown_operation_is_an_error_of_dynamodbs_shape() {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        let url = engine.endpoint_url();
        for (line, headers, code) in [
            ("POST /", &["Host: localhost", "X-Amz-Target: DynamoDB_20120810.Nothing"][..], 400),
            ("DELETE /", &["Host: localhost"], 404),
        ] {
            let answer = sent(&url, line, headers).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{answer}");
            assert!(answer.contains("\"__type\":"), "{answer}");
        }
        engine.stop().await.unwrap();
    }
}
