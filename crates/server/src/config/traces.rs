//! Traces of requests.

use schemars::JsonSchema;
use serde::Deserialize;

/// Traces of requests, sent to a collector of OpenTelemetry (OTLP over gRPC).
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// The URL of the collector, like `http://127.0.0.1:4317`.
    #[schemars(regex(pattern = "^http://"))]
    pub endpoint: String,
    /// The share of requests that are traced, from 0 to 1. A request with a `traceparent` is traced if
    /// its caller says so.
    #[serde(default = "all")]
    #[schemars(range(min = 0, max = 1))]
    pub share: f64,
}

fn all() -> f64 {
    1.0
}
