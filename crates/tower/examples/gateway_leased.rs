//! A gateway's check that decides in the process: a thousand requests an hour for each key. It
//! writes the use of a key once per 50 requests, and the rest at the end (`kill`, or Ctrl-C).
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

#[path = "support/key.rs"]
mod key;
mod support;

use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use axum::routing::get;
use sluicegate::error::BoxError;
use sluicegate::leasing::SettleReport;
use sluicegate::{DynamoStore, LeaseMode, LeaseSettings, Limit, Limiter};
use sluicegate_tower::{LimitRequest, RateLimitLayer, Rejection};
use tokio::net::TcpListener;

/// One request of the key's owner.
fn wanted(parts: &Parts) -> Result<Option<LimitRequest>, Rejection> {
    let request = LimitRequest::new(key::entity(parts)?, "gateway").consume("rph", 1);
    Ok(Some(request.limits([Limit::per_hour("rph", 1_000)])))
}

pub(crate) fn app(limiter: Limiter) -> Router {
    let check = get(|| async { "pass\n" });
    Router::new().route("/check", check.layer(RateLimitLayer::new(limiter, wanted)))
}

/// At most 50 requests of a key are admitted before the table knows of them.
pub(crate) fn leases() -> LeaseSettings {
    let mode = LeaseMode::WriteBehind { threshold: 50 };
    LeaseSettings { mode, ..LeaseSettings::default() }
}

/// Serves until the end, then tells the table the rest.
pub(crate) async fn serve(
    listener: TcpListener,
    store: DynamoStore,
) -> Result<SettleReport, BoxError> {
    let limiter = Limiter::builder(store).leasing(leases()).build();
    support::listen(listener, app(limiter.clone())).await?;
    Ok(limiter.shutdown(Duration::from_secs(5)).await)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().init();
    let (place, listener) = (support::place().await?, support::port().await?);
    println!("try: curl -i 'http://{}/check?api_key=alice'", listener.local_addr()?);
    let report = serve(listener, place.store).await?;
    println!("{} keys settled, {} not", report.settled, report.unsettled.len());
    Ok(())
}
