//! Bodies of requests, read as JSON.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// The body of a request. A failure is answered with a problem that names the place of the mistake.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes());
        let is_json = kind.is_none_or(|kind| {
            let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
            kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
        });
        if !is_json {
            let detail = "send the body as application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| Problem::new(rejection.status(), rejection.body_text()))?;
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| Problem::bad(format!("the body: {error}")))
    }
}
