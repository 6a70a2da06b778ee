//! Refusals as problems (RFC 9457): their body in JSON.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// The problem type of the draft, for quotas that are exceeded.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// A response with a problem. `violated` holds the names of the policies that the request would have
/// violated.
#[must_use]
pub fn problem(status: StatusCode, detail: Option<&str>, violated: &[String]) -> Response<String> {
    let (kind, title) = match status {
        StatusCode::TOO_MANY_REQUESTS if !violated.is_empty() => {
            (QUOTA_EXCEEDED, "Request cannot be satisfied as assigned quota has been exceeded")
        }
        // A problem without a type of its own has the title of its status (RFC 9457, 4.2.1).
        _ => ("about:blank", status.canonical_reason().unwrap_or("Refused")),
    };
    let mut body = json!({"type": kind, "title": title, "status": status.as_u16()});
    if let Some(detail) = detail {
        body["detail"] = detail.into();
    }
    if !violated.is_empty() {
        body["violated-policies"] = violated.into();
    }
    let mut response = Response::new(body.to_string());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM);
    response
}
