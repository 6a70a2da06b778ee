//! Metrics for Prometheus: those of the limiter, and those of the server's requests.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use http::StatusCode;
use metrics::{Counter, Histogram, Unit, counter, describe_counter, describe_histogram, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

const REQUESTS: &str = "sluicegate_http_requests_total";
const DURATION: &str = "sluicegate_http_request_duration_seconds";
/// Upper bounds of the histograms, in seconds.
const BUCKETS: [f64; 12] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5];

/// Collects the metrics of this process from now on. A limiter that is made later is included.
/// Repeated calls change nothing; neither does a call after another recorder was installed.
pub fn install_metrics() {
    recorder();
}

/// `None`: the program has a recorder of its own.
fn recorder() -> Option<&'static PrometheusHandle> {
    static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let install = || {
        let builder = PrometheusBuilder::new().set_buckets(&BUCKETS).ok()?;
        let handle = builder.install_recorder().ok()?;
        describe_counter!(REQUESTS, "Requests by path, method and status");
        describe_histogram!(DURATION, Unit::Seconds, "Time from a request's head to its answer");
        Some(handle)
    };
    RECORDER.get_or_init(install).as_ref()
}

/// All metrics as text.
pub(crate) fn rendered() -> String {
    recorder().map(PrometheusHandle::render).unwrap_or_default()
}

/// The interval at which samples of histograms are folded, so that they take no more memory.
pub(crate) const UPKEEP: Duration = Duration::from_secs(5);

/// Folds the samples of histograms.
pub(crate) fn upkeep() {
    if let Some(recorder) = recorder() {
        recorder.run_upkeep();
    }
}

/// The parts of a request that its metrics and its log line name: no entity, as a path may have one.
pub(crate) struct Seen {
    method: &'static str,
    path: Option<MatchedPath>,
}

impl Seen {
    pub(crate) fn of(request: &Request) -> Self {
        let path = request.extensions().get::<MatchedPath>().cloned();
        // Any word may be a method.
        let method = match request.method().as_str() {
            "GET" => "GET",
            "POST" => "POST",
            "PUT" => "PUT",
            "DELETE" => "DELETE",
            _ => "other",
        };
        Self { method, path }
    }

    pub(crate) fn method(&self) -> &str {
        self.method
    }

    pub(crate) fn path(&self) -> &str {
        self.path.as_ref().map_or("other", MatchedPath::as_str)
    }

    /// Writes a line to the access log.
    pub(crate) fn log(&self, caller: &str, response: &Response, took: Duration) {
        let (method, path, status) = (self.method, self.path(), Status::of(response).to_string());
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        tracing::info!(target: "sluicegate::access", method, path, caller, status, micros);
    }
}

/// The status of a response, of a refusal over gRPC its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Status {
    Http(StatusCode),
    Grpc(u8),
}

impl Status {
    fn of(response: &Response) -> Self {
        let code = response.headers().get("grpc-status").and_then(|code| code.to_str().ok());
        let code = code.and_then(|code| code.parse().ok());
        code.map_or_else(|| Self::Http(response.status()), Self::Grpc)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Http(status) => f.write_str(status.as_str()),
            Self::Grpc(code) => write!(f, "grpc-{code}"),
        }
    }
}

/// The counter of one kind of requests, and the durations of its path.
struct OfKind {
    requests: Counter,
    durations: Histogram,
}

impl OfKind {
    fn new(seen: &Seen, status: Status) -> Self {
        let (path, method, status) = (seen.path().to_owned(), seen.method, status.to_string());
        let durations = histogram!(DURATION, "path" => path.clone());
        let requests = counter!(REQUESTS, "path" => path, "method" => method, "status" => status);
        Self { requests, durations }
    }

    fn count(&self, took: Duration) {
        self.durations.record(took.as_secs_f64());
        self.requests.increment(1);
    }
}

type ByPath = HashMap<String, OfKind>;

/// The metrics of a server's requests, made at the first request of each kind: finding them by their
/// labels for every request would take a microsecond.
#[derive(Default)]
pub(crate) struct RequestMetrics {
    kinds: RwLock<HashMap<(&'static str, Status), ByPath>>,
}

impl RequestMetrics {
    /// Counts a request.
    pub(crate) fn count(&self, seen: &Seen, response: &Response, took: Duration) {
        let (path, kind) = (seen.path(), (seen.method, Status::of(response)));
        let known = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&kind).and_then(|paths| paths.get(path)) {
            return known.count(took);
        }
        drop(known);
        let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        let paths = kinds.entry(kind).or_default();
        paths.entry(path.to_owned()).or_insert_with(|| OfKind::new(seen, kind.1)).count(took);
    }
}
