//! The check that a gateway makes before it lets a request through: 200 while the key has requests
//! left, 429 with `Retry-After` when it has not.
//!
//! ```sh
//! cargo run -p sluicegate --example gateway
//! curl -i 'http://127.0.0.1:3000/check?api_key=alice'   # six times
//! ```
//!
//! Balances are in a DynamoDB engine in this process, or where the environment says: see
//! `support/mod.rs`.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

mod support;

use std::collections::HashMap;

use axum::Router;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use sha2::{Digest as _, Sha256};
use sluicegate::tower::{RateLimitLayer, Rejection, Wanted};
use sluicegate::{BoxError, Clock, Limit, Limiter, Store};

/// One request of five a minute for every key.
fn wanted(parts: &Parts) -> Result<Option<Wanted>, Rejection> {
    let query = Query::<HashMap<String, String>>::try_from_uri(&parts.uri);
    let Query(query) = query.map_err(|_| StatusCode::BAD_REQUEST)?;
    let no_key = || Rejection::new(StatusCode::BAD_REQUEST, "say who you are: /check?api_key=...");
    let key = query.get("api_key").filter(|key| !key.is_empty()).ok_or_else(no_key)?;
    let wanted = Wanted::new(entity(key), "gateway").consume("rpm", 1);
    Ok(Some(wanted.limits([Limit::per_minute("rpm", 5)])))
}

/// A key is a secret and an entity is none, so the table and the log get 128 bits of the key's hash.
fn entity(key: &str) -> String {
    let first = |sum: u128, byte: &u8| sum << 8 | u128::from(*byte);
    format!("key-{:032x}", Sha256::digest(key).iter().take(16).fold(0, first))
}

/// The same program over every store and by every clock.
pub(crate) fn app<S: Store, C: Clock>(limiter: Limiter<S, C>) -> Router {
    let check = get(|| async { "pass\n" }).layer(RateLimitLayer::new(limiter, wanted));
    Router::new().route("/check", check)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().init();
    let app = |store| app(Limiter::new(store));
    support::serve(app, |at| println!("try: curl -i 'http://{at}/check?api_key=alice'")).await
}
