//! Metrics for Prometheus: those of the limiter, and those of the server's requests.

use std::sync::OnceLock;
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
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
    path: String,
}

impl Seen {
    pub(crate) fn of(request: &Request) -> Self {
        let path = request.extensions().get::<MatchedPath>();
        let path = path.map_or("other", MatchedPath::as_str).to_owned();
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
        &self.path
    }

    /// Writes a line to the access log.
    pub(crate) fn log(&self, caller: &str, response: &Response, took: Duration) {
        let Self { method, path } = self;
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let status = status(response);
        tracing::info!(target: "sluicegate::access", method, path, caller, status, micros);
    }

    /// Counts the request.
    pub(crate) fn count(self, response: &Response, took: Duration) {
        let (Self { method, path }, status) = (self, status(response));
        histogram!(DURATION, "path" => path.clone()).record(took.as_secs_f64());
        counter!(REQUESTS, "path" => path, "method" => method, "status" => status).increment(1);
    }
}

/// The status of a response; of a refusal over gRPC, `grpc-` and its code.
fn status(response: &Response) -> String {
    let code = response.headers().get("grpc-status").and_then(|code| code.to_str().ok());
    code.map_or_else(|| response.status().as_str().to_owned(), |code| format!("grpc-{code}"))
}
