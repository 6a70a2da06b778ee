//! Metrics for Prometheus: those of the limiter, and those of the server's requests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::extract::{MatchedPath, Request};
use axum::response::Response;
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

/// The metrics of the server's requests.
pub(crate) struct RequestMetrics(ArcSwap<BTreeMap<String, PathMetrics>>);

/// The metrics of one path. They are kept, because finding one by its labels takes time.
#[derive(Clone)]
struct PathMetrics {
    duration: Histogram,
    requests: Vec<(&'static str, Status, Counter)>,
}

impl RequestMetrics {
    /// Metrics of a server that starts. Without a recorder of the program's own, this installs one.
    pub(crate) fn new() -> Self {
        install_metrics();
        Self(ArcSwap::default())
    }

    fn count(&self, path: &str, method: &'static str, status: Status, took: Duration) {
        let is_counted = |paths: &BTreeMap<String, PathMetrics>| {
            paths.get(path).is_some_and(|of_path| of_path.count(method, status, took))
        };
        if is_counted(&self.0.load()) {
            return;
        }
        self.0.rcu(|paths| {
            let mut paths = BTreeMap::clone(paths);
            let of_path = paths.entry(path.to_owned()).or_insert_with(|| PathMetrics {
                duration: histogram!(DURATION, "path" => path.to_owned()),
                requests: Vec::new(),
            });
            let text = status.to_string();
            let counter =
                counter!(REQUESTS, "path" => path.to_owned(), "method" => method, "status" => text);
            of_path.requests.push((method, status, counter));
            paths
        });
        is_counted(&self.0.load());
    }
}

impl PathMetrics {
    /// False if such a request is not known yet.
    fn count(&self, method: &str, status: Status, took: Duration) -> bool {
        let mut requests = self.requests.iter();
        let known =
            requests.find(|(of_method, of_status, _)| (*of_method, *of_status) == (method, status));
        let Some((_, _, counter)) = known else { return false };
        self.duration.record(took.as_secs_f64());
        counter.increment(1);
        true
    }
}

/// The parts of a request that its metrics and its log line name: no entity, as a path may have one.
pub(crate) struct Seen {
    method: &'static str,
    path: Option<MatchedPath>,
}

impl Seen {
    pub(crate) fn of(request: &Request) -> Self {
        let path = request.extensions().get().cloned();
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
    pub(crate) fn log(&self, caller: &str, status: Status, took: Duration) {
        let (method, path) = (self.method, self.path());
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        tracing::info!(target: "sluicegate::access", method, path, caller, %status, micros);
    }

    /// Counts the request.
    pub(crate) fn count(&self, metrics: &RequestMetrics, status: Status, took: Duration) {
        metrics.count(self.path(), self.method, status, took);
    }
}

/// The status of a response: of a refusal over gRPC, its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    is_grpc: bool,
    code: u16,
}

impl Status {
    /// The client left before it had an answer: the code that nginx logs then.
    pub(crate) const LEFT: Self = Self { is_grpc: false, code: 499 };

    pub(crate) fn of(response: &Response) -> Self {
        let code = response.headers().get("grpc-status").and_then(|code| code.to_str().ok());
        match code.and_then(|code| code.parse().ok()) {
            Some(code) => Self { is_grpc: true, code },
            None => Self { is_grpc: false, code: response.status().as_u16() },
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.is_grpc { "grpc-" } else { "" };
        write!(f, "{protocol}{}", self.code)
    }
}
