//! Answers to requests that were not carried out, as problems (RFC 9457).

use std::error::Error;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use sluicegate::dynamo::{ConfigError, ReadError, RequestError};
use sluicegate::{AcquireError, AdjustError};
use sluicegate_tower::problem;
use tokio::task::JoinError;

use crate::callers::Denied;
use crate::permit_id::RefusedId;

/// A request that was not carried out.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    /// If the status is 503: true if the client may send the same request again.
    may_be_repeated: bool,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl ToString) -> Self {
        Self { status, detail: detail.to_string(), may_be_repeated: true }
    }

    /// The request is wrong.
    pub(crate) fn bad(detail: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// The answer to a request; to one of gRPC, a status in its headers.
    pub(crate) fn answer_to(self, is_grpc: bool) -> Response {
        if !is_grpc {
            return self.into_response();
        }
        let code = match self.status {
            StatusCode::UNAUTHORIZED => tonic::Code::Unauthenticated,
            StatusCode::FORBIDDEN => tonic::Code::PermissionDenied,
            _ => tonic::Code::Unavailable,
        };
        tonic::Status::new(code, self.detail).into_http()
    }

    /// The store did not carry it out.
    fn unavailable(error: &(dyn Error + 'static), detail: &str) -> Self {
        tracing::warn!(error, "not carried out");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// A correction without a key may have been made, in whole or in part: the same request could
    /// make it twice.
    pub(crate) fn left_open(error: &AdjustError) -> Self {
        let detail = "the correction may have been made: do not repeat it, and send an Idempotency-Key with the next one";
        Self::unavailable(error, detail).not_to_be_repeated()
    }

    /// The same problem without the advice to send the request again.
    pub(crate) fn not_to_be_repeated(self) -> Self {
        Self { may_be_repeated: false, ..self }
    }

    /// Permissions, the table or an item must be repaired.
    fn broken(error: &(dyn Error + 'static)) -> Self {
        tracing::error!(error, "not carried out");
        let detail = "the server cannot use its store: its log has the reason";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = problem(self.status, Some(&self.detail), &[]).map(Body::from);
        let headers = response.headers_mut();
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE if self.may_be_repeated => {
                drop(headers.insert(RETRY_AFTER, 1.into()));
            }
            StatusCode::UNAUTHORIZED => {
                drop(headers.insert(WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer")));
            }
            _ => {}
        }
        response
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let (status, detail) = match denied {
            Denied::Unknown => {
                (StatusCode::UNAUTHORIZED, "send a known token: Authorization: Bearer TOKEN")
            }
            Denied::Role => {
                (StatusCode::FORBIDDEN, "the token's roles do not include this operation")
            }
            Denied::WebPage => (
                StatusCode::FORBIDDEN,
                "without callers, this server answers programs on this machine and no web page: name 127.0.0.1 or localhost, or name callers",
            ),
        };
        Self::new(status, detail)
    }
}

impl From<JoinError> for Problem {
    fn from(error: JoinError) -> Self {
        Self::broken(&error)
    }
}

impl From<RefusedId> for Problem {
    fn from(refused: RefusedId) -> Self {
        let status = match refused {
            RefusedId::Invalid => StatusCode::NOT_FOUND,
            RefusedId::Expired => StatusCode::GONE,
        };
        Self::new(status, refused)
    }
}

impl From<AdjustError> for Problem {
    fn from(error: AdjustError) -> Self {
        match &error {
            AdjustError::InvalidRequest(invalid) => Self::bad(invalid),
            AdjustError::Setup(setup) => Self::broken(setup),
            AdjustError::Contended => Self::unavailable(
                &error,
                "the bucket is contended: nothing was changed, ask again later",
            ),
            _ => Self::unavailable(
                &error,
                "the store did not answer: with an Idempotency-Key, repeat the request",
            ),
        }
    }
}

impl From<AcquireError> for Problem {
    fn from(error: AcquireError) -> Self {
        match &error {
            AcquireError::InvalidRequest(invalid) => Self::bad(invalid),
            AcquireError::Setup(setup) => Self::broken(setup),
            _ => Self::unavailable(&error, "the store did not answer: ask again later"),
        }
    }
}

impl From<ConfigError> for Problem {
    fn from(error: ConfigError) -> Self {
        match &error {
            ConfigError::NotDynamo => Self::new(
                StatusCode::NOT_IMPLEMENTED,
                "the server's store has no entities, stored limits or usage windows: use DynamoDB",
            ),
            ConfigError::OwnParent { .. }
            | ConfigError::Limit(_)
            | ConfigError::Repeated { .. }
            | ConfigError::Count { .. } => Self::bad(&error),
            ConfigError::Item(_) => Self::broken(&error),
            ConfigError::Request(request) if must_be_repaired(request) => Self::broken(&error),
            _ => Self::unavailable(&error, "the store did not answer: ask again later"),
        }
    }
}

/// True if permissions or the table must be repaired.
const fn must_be_repaired(error: &RequestError) -> bool {
    matches!(error, RequestError::MissingTable { .. } | RequestError::AccessDenied { .. })
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match &error {
            ReadError::Item(_) => Self::broken(&error),
            ReadError::Request(request) if must_be_repaired(request) => Self::broken(&error),
            _ => Self::unavailable(&error, "the store did not answer: ask again later"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correction_that_may_have_been_made_is_not_to_be_repeated() {
        let lost = || AdjustError::Unavailable("no answer".into());
        let may_be_repeated = |problem: Problem| {
            let response = problem.into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            response.headers().contains_key(RETRY_AFTER)
        };
        assert!(may_be_repeated(lost().into()));
        assert!(!may_be_repeated(Problem::left_open(&lost())));
    }
}
