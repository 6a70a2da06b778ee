//! `/healthz` and `/readyz`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use http::StatusCode;

use super::problem::Problem;
use crate::state::ServerState;

/// The time in which the store must answer.
const STORE_ANSWERS: Duration = Duration::from_secs(2);

/// The process runs.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "The process runs")))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// The store answers.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = 200, description = "The store answers"),
    (status = 503, description = "The store does not answer", content_type = "application/problem+json"),
))]
pub(super) async fn readyz(State(state): State<Arc<ServerState>>) -> Result<&'static str, Problem> {
    let error = match tokio::time::timeout(STORE_ANSWERS, state.limiter.warm_up()).await {
        Ok(Ok(())) => return Ok("ok\n"),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    tracing::warn!(error, "the store is not ready");
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the store does not answer"))
}
