//! A gateway's check before it lets a request through: 200 while the key has requests left, 429
//! with `Retry-After` otherwise.
//!
//! ```sh
//! cargo run -p sluicegate-tower --example gateway
//! curl -i 'http://127.0.0.1:3000/check?api_key=alice'   # six times
//! ```
//!
//! With `--leased`, a key has a thousand an hour, and the gateway decides by itself: it writes the
//! use of a key once per 50 requests, and the rest at the end (`kill`, or ctrl-c).
//!
//! Balances are in a DynamoDB engine in this process, or in the table that the environment names:
//! see `support/mod.rs`.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use sha2::{Digest as _, Sha256};
use sluicegate::error::BoxError;
use sluicegate::leasing::SettleReport;
use sluicegate::{DynamoStore, LeaseMode, LeaseSettings, Limit, Limiter};
use sluicegate_tower::{LimitRequest, RateLimitLayer, Rejection};
use tokio::net::TcpListener;

/// One request under this limit for every key.
fn wanted(parts: &Parts, limit: Limit) -> Result<Option<LimitRequest>, Rejection> {
    let query = Query::<HashMap<String, String>>::try_from_uri(&parts.uri);
    let Query(query) = query.map_err(|_| StatusCode::BAD_REQUEST)?;
    let no_key = || Rejection::new(StatusCode::BAD_REQUEST, "name your key: /check?api_key=...");
    let key = query.get("api_key").filter(|key| !key.is_empty()).ok_or_else(no_key)?;
    let wanted = LimitRequest::new(entity(key), "gateway").consume(limit.name(), 1);
    Ok(Some(wanted.limits([limit])))
}

/// A key is a secret and an entity is not, so the table and the log get 128 bits of the key's hash.
fn entity(key: &str) -> String {
    let first = |sum: u128, byte: &u8| sum << 8 | u128::from(*byte);
    format!("key-{:032x}", Sha256::digest(key).iter().take(16).fold(0, first))
}

/// The program, generic over store and clock.
pub(crate) fn app(limiter: Limiter) -> Router {
    checking(limiter, || Limit::per_minute("rpm", 5))
}

/// The program with decisions made in this process.
pub(crate) fn leased_app(limiter: Limiter) -> Router {
    checking(limiter, || Limit::per_hour("rph", 1_000))
}

fn checking(limiter: Limiter, limit: fn() -> Limit) -> Router {
    let wanted = move |parts: &Parts| wanted(parts, limit());
    let check = get(|| async { "pass\n" }).layer(RateLimitLayer::new(limiter, wanted));
    Router::new().route("/check", check)
}

/// At most 50 requests of a key are admitted before the table knows of them.
pub(crate) fn leases() -> LeaseSettings {
    let mode = LeaseMode::WriteBehind { threshold: 50 };
    LeaseSettings { mode, ..LeaseSettings::default() }
}

/// Serves until the end, then tells the table the rest.
pub(crate) async fn serve_leased(
    listener: TcpListener,
    store: DynamoStore,
) -> Result<SettleReport, BoxError> {
    let limiter = Limiter::builder(store).leasing(leases()).build();
    support::listen(listener, leased_app(limiter.clone())).await?;
    Ok(limiter.shutdown(Duration::from_secs(5)).await)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().init();
    let says = |at| println!("try: curl -i 'http://{at}/check?api_key=alice'");
    if !std::env::args().any(|arg| arg == "--leased") {
        return support::serve(|store| app(Limiter::new(store)), says).await;
    }
    let (place, listener) = (support::place().await?, support::port().await?);
    says(listener.local_addr()?);
    let report = serve_leased(listener, place.store).await?;
    println!("{} keys settled, {} not", report.settled, report.unsettled.len());
    Ok(())
}
