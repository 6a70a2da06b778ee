//! An axum server whose users have five requests and 1,000 tokens a minute.
//!
//! ```sh
//! cargo run -p sluicegate-tower --example axum
//! ```
//!
//! Balances are in a DynamoDB engine in this process, or in the table that the environment names:
//! see `support/mod.rs`.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

mod support;

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Extension, Router};
use sluicegate::error::BoxError;
use sluicegate::{Limit, Limiter, Permit};
use sluicegate_tower::{LimitRequest, RateLimitLayer, Rejection};

/// The estimated cost of an answer, before it is known.
const TOKENS_ESTIMATED: i64 = 100;

/// The entity and the cost of a request. Here a header is trusted; a real server authenticates
/// first.
fn wanted(parts: &Parts) -> Result<Option<LimitRequest>, Rejection> {
    if parts.uri.path() == "/health" {
        return Ok(None);
    }
    let unknown = || {
        Rejection::new(StatusCode::UNAUTHORIZED, "name yourself in the header x-user")
            .header(WWW_AUTHENTICATE, HeaderValue::from_static("X-User"))
    };
    let user = parts.headers.get("x-user").ok_or_else(unknown)?.to_str()?;
    let limits = [Limit::per_minute("rpm", 5), Limit::per_minute("tpm", 1_000)];
    let wanted = LimitRequest::new(user, "echo").limits(limits).consume("rpm", 1);
    Ok(Some(wanted.consume("tpm", TOKENS_ESTIMATED)))
}

/// Four bytes are a token; the estimate is corrected to that.
async fn echo(Extension(permit): Extension<Arc<Permit>>, body: Bytes) -> (StatusCode, String) {
    let Ok(text) = std::str::from_utf8(&body) else {
        // No work was done, so the tokens go back.
        return match permit.give_back().await {
            Ok(_) => (StatusCode::BAD_REQUEST, "send text\n".to_owned()),
            Err(error) => (StatusCode::BAD_REQUEST, format!("send text ({error})\n")),
        };
    };
    let tokens = i64::try_from(text.len().div_ceil(4)).unwrap_or(i64::MAX);
    match permit.adjust("tpm", tokens.saturating_sub(TOKENS_ESTIMATED)).await {
        Ok(_) => (StatusCode::OK, format!("{tokens} tokens: {text}\n")),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// The program, generic over store and clock.
pub(crate) fn app(limiter: Limiter) -> Router {
    Router::new()
        .route("/health", get(|| async { "well\n" }))
        .route("/echo", post(echo))
        .layer(RateLimitLayer::new(limiter, wanted))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().init();
    let (place, listener) = (support::place().await?, support::port().await?);
    let at = listener.local_addr()?;
    println!("try:");
    println!("  curl -i -H 'x-user: alice' -d 'a few words' http://{at}/echo   # six times");
    println!(
        "  head -c 8000 /dev/zero | tr '\\0' x | curl -i -H 'x-user: bob' -d @- http://{at}/echo"
    );
    println!("  curl -i http://{at}/health   # not limited");
    support::listen(listener, app(Limiter::new(place.store))).await
}
