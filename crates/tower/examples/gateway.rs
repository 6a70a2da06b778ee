//! A gateway's check with axum and tower: five requests a minute for each key, then 429 with
//! `Retry-After`. The variables of `support/mod.rs` choose another table or port.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

#[path = "support/key.rs"]
mod key;
mod support;

use axum::Router;
use axum::http::request::Parts;
use axum::routing::get;
use sluicegate::error::BoxError;
use sluicegate::{Limit, Limiter};
use sluicegate_tower::{LimitRequest, RateLimitLayer, Rejection};

/// One request of the key's owner.
fn wanted(parts: &Parts) -> Result<Option<LimitRequest>, Rejection> {
    let request = LimitRequest::new(key::entity(parts)?, "gateway").consume("rpm", 1);
    Ok(Some(request.limits([Limit::per_minute("rpm", 5)])))
}

pub(crate) fn app(limiter: Limiter) -> Router {
    let check = get(|| async { "pass\n" });
    Router::new().route("/check", check.layer(RateLimitLayer::new(limiter, wanted)))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().init();
    let (place, listener) = (support::place().await?, support::port().await?);
    println!("try six times: curl -i 'http://{}/check?api_key=alice'", listener.local_addr()?);
    support::listen(listener, app(Limiter::new(place.store))).await
}
