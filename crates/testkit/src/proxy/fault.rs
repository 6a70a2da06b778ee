//! The faults of a request, and the errors that are answered instead of forwarding it.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use serde_json::{Value, json};

/// A request, as a policy sees it.
#[derive(Debug)]
pub struct Call<'a> {
    /// The operation, such as `UpdateItem`.
    pub operation: &'a str,
    /// Its number among the requests of this operation, from 1.
    pub number: u64,
    /// The request's JSON.
    pub body: &'a [u8],
}

/// The action for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: forward it.
    None,
    /// Answer this error without forwarding.
    Refuse {
        /// HTTP status, 400 or 500.
        status: u16,
        /// Error type as DynamoDB spells it, with its namespace.
        error: &'static str,
    },
    /// Answer that a transaction was cancelled, without forwarding: a code for each of its items,
    /// `None` for those that were not the reason.
    Cancel(&'static [&'static str]),
    /// Forward it after this time.
    Delay(Duration),
    /// Close the connection at once and forward the request after this time: a write that is
    /// applied when the client has long given it up.
    Late(Duration),
    /// Forward it, then close the connection instead of replying: the write is applied, and the
    /// client does not learn it.
    LoseReply,
    /// Forward it, then answer 200 with this body, such as `{}`: the write is applied, and the
    /// client does not learn it.
    BlankReply(&'static str),
    /// Answer 200 with this body without forwarding, as a server that is not DynamoDB may.
    Blank(&'static str),
    /// Close the connection without forwarding.
    Cut,
}

impl Fault {
    /// The table's or partition's throughput is exceeded.
    pub const THROTTLED: Self = Self::Refuse {
        status: 400,
        error: "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
    };
    /// The account or an on-demand table is throttled.
    pub const THROTTLING: Self =
        Self::Refuse { status: 400, error: "com.amazon.coral.availability#ThrottlingException" };
    /// DynamoDB failed internally.
    pub const INTERNAL: Self =
        Self::Refuse { status: 500, error: "com.amazonaws.dynamodb.v20120810#InternalServerError" };
    /// A transaction is writing the same item.
    pub const CONFLICT: Self = Self::Refuse {
        status: 400,
        error: "com.amazonaws.dynamodb.v20120810#TransactionConflictException",
    };
    /// The credentials do not allow the action.
    pub const DENIED: Self =
        Self::Refuse { status: 400, error: "com.amazon.coral.service#AccessDeniedException" };
}

pub(super) fn blank(body: &'static str) -> Response<Full<Bytes>> {
    answer(200, body)
}

pub(super) fn cancellation(codes: &[&str]) -> Response<Full<Bytes>> {
    let reason = |code: &&str| json!({"Code": code, "Message": "injected by a test"});
    let reasons: Vec<_> = codes.iter().map(reason).collect();
    let error = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException";
    refusal(400, error, &json!({"CancellationReasons": reasons}))
}

pub(super) fn refusal(status: u16, error: &str, more: &Value) -> Response<Full<Bytes>> {
    let mut body = json!({"__type": error, "message": "injected by a test"});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    answer(status, body.to_string())
}

fn answer(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .header("content-type", "application/x-amz-json-1.0")
        .body(Full::new(body.into()))
        .unwrap()
}
