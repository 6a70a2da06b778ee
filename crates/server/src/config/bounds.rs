//! The bounds on what callers may send.

use schemars::JsonSchema;
use serde::Deserialize;

/// The bounds on what callers may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Bounds {
    /// The bytes of a request's body.
    #[schemars(range(min = 1_024, max = 16_777_216))]
    pub body_bytes: usize,
    /// The connections that are open at a time. Further ones are closed at once.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub connections: usize,
    /// The requests that are in flight at a time. Health and metrics are not counted. Further ones are answered with 503.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub requests: usize,
    /// The time that a request may take from the end of its head to the answer, in milliseconds.
    #[schemars(range(min = 1_000, max = 600_000))]
    pub request_ms: u64,
    /// The time that open requests have to finish when the server stops, in milliseconds.
    #[schemars(range(min = 0, max = 600_000))]
    pub shutdown_ms: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            body_bytes: 64 * 1_024,
            connections: 10_000,
            requests: 4_096,
            request_ms: 10_000,
            shutdown_ms: 20_000,
        }
    }
}
