//! Bodies of requests, read as JSON.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::state::ServerState;

/// The body of a request. A failure is answered with a problem that names the place of the mistake.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<ServerState>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &Arc<ServerState>) -> Result<Self, Problem> {
        JsonBytes::from_request(request, state).await?.parse().map(Self)
    }
}

/// The bytes of a body, for a type that borrows from them.
pub(super) struct JsonBytes(Bytes);

impl JsonBytes {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// # Errors
    /// 400 with the place of the mistake.
    pub(super) fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        serde_json::from_slice(&self.0).map_err(|error| Problem::bad(format!("the body: {error}")))
    }

    /// As `parse`; an error also says what the body should be.
    ///
    /// # Errors
    /// 400 with the place of the mistake.
    pub(super) fn parse_as<'a, T: Deserialize<'a>>(&'a self, wanted: &str) -> Result<T, Problem> {
        serde_json::from_slice(&self.0)
            .map_err(|error| Problem::bad(format!("the body must have {wanted}: {error}")))
    }
}

impl FromRequest<Arc<ServerState>> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &Arc<ServerState>) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes());
        let is_json = kind.is_none_or(|kind| {
            let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
            kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
        });
        if !is_json {
            let detail = "send the body as application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        read(request.into_body(), state.bounds.body_bytes).await.map(Self)
    }
}

/// Reads a body of at most `most` bytes. Most bodies come in one piece, which is not copied.
///
/// # Errors
/// 413 for a longer one, 400 if it breaks off.
async fn read(mut body: axum::body::Body, most: usize) -> Result<Bytes, Problem> {
    let (mut first, mut whole) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::bad(format!("the body: {error}")))?;
        let Ok(piece) = frame.into_data() else { continue };
        if first.len() + whole.len() + piece.len() > most {
            let detail = format!("the body is longer than {most} bytes");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
        }
        if first.is_empty() && whole.is_empty() {
            first = piece;
        } else {
            whole.extend_from_slice(&std::mem::take(&mut first));
            whole.extend_from_slice(&piece);
        }
    }
    Ok(if whole.is_empty() { first } else { whole.into() })
}
