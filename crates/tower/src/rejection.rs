//! An extractor's own response, to requests that must not reach the service.

use http::header::{HeaderName, HeaderValue, ToStrError};
use http::{Response, StatusCode};
use sluicegate::error::NameError;

use crate::problem::problem;

/// The response to a request that lacks a valid entity or resource.
///
/// `?` turns a [`StatusCode`] into one; a name that keys cannot carry, or a header that is not
/// text, becomes 400. A whole [`Response`] is taken as it is.
///
/// ```
/// use http::header::{HeaderValue, WWW_AUTHENTICATE};
/// use http::request::Parts;
/// use http::StatusCode;
/// use sluicegate_tower::Rejection;
///
/// fn user(parts: &Parts) -> Result<&str, Rejection> {
///     let unknown = || {
///         Rejection::new(StatusCode::UNAUTHORIZED, "log in first")
///             .header(WWW_AUTHENTICATE, HeaderValue::from_static("Basic"))
///     };
///     Ok(parts.headers.get("x-user").ok_or_else(unknown)?.to_str()?)
/// }
/// # drop(user);
/// ```
#[derive(Debug, Clone)]
pub struct Rejection {
    response: Box<Response<String>>,
}

impl Rejection {
    /// A problem (RFC 9457) with this status; `detail` is a sentence that the client sees.
    #[must_use]
    pub fn new(status: StatusCode, detail: impl AsRef<str>) -> Self {
        problem(status, Some(detail.as_ref()), &[]).into()
    }

    /// Adds a header: `WWW-Authenticate`, which every 401 must have, for one.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.response.headers_mut().append(name, value);
        self
    }

    pub(crate) fn into_response(self) -> Response<String> {
        *self.response
    }
}

impl From<StatusCode> for Rejection {
    fn from(status: StatusCode) -> Self {
        problem(status, None, &[]).into()
    }
}

impl From<Response<String>> for Rejection {
    fn from(response: Response<String>) -> Self {
        Self { response: Box::new(response) }
    }
}

/// The client's text is not repeated: it may be a credential.
impl From<NameError> for Rejection {
    fn from(_: NameError) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "a name is empty, too long or has '#' or control characters",
        )
    }
}

impl From<ToStrError> for Rejection {
    fn from(_: ToStrError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "a header has characters other than visible ASCII")
    }
}
