//! `/healthz` and `/readyz`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use http::StatusCode;

use super::problem::Problem;
use crate::state::ServerState;

/// The time in which the store must answer.
const STORE_ANSWERS: Duration = Duration::from_secs(2);
/// An answer of the store serves all requests for this time: anyone may ask.
const READINESS_AGE_MAX: Duration = Duration::from_millis(500);

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
    // A client that leaves must not end it, or no answer of the store would be kept.
    match tokio::spawn(recently_ready(state)).await {
        Ok(true) => Ok("ok\n"),
        _ => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the store does not answer")),
    }
}

async fn recently_ready(state: Arc<ServerState>) -> bool {
    let mut readiness = state.readiness.lock().await;
    match *readiness {
        Some((answered_at, is_ready)) if answered_at.elapsed() < READINESS_AGE_MAX => is_ready,
        _ => {
            let is_ready = is_ready(&state).await;
            readiness.insert((Instant::now(), is_ready)).1
        }
    }
}

async fn is_ready(state: &ServerState) -> bool {
    let error = match tokio::time::timeout(STORE_ANSWERS, state.limiter.warm_up()).await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    tracing::warn!(error, "the store is not ready");
    false
}
