//! An axum server whose users have five requests and 1,000 tokens a minute.
//!
//! ```sh
//! cargo run -p sluicegate --features tower --example axum
//! ```
//!
//! Balances are kept in memory, or on DynamoDB in the table that `SLUICEGATE_TABLE` names (region,
//! credentials and endpoint from the usual AWS environment). `PORT` chooses another port than 3000.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use std::net::Ipv4Addr;

use aws_config::BehaviorVersion;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Extension, Router};
use sluicegate::tower::{LeaseHandle, RateLimitLayer, Rejection, Wanted};
use sluicegate::{CompositeStore, DynamoStore, Limit, Limiter, MemoryTable, Store};

/// What an answer is estimated to take, before it is known.
const TOKENS_ESTIMATED: i64 = 100;

/// Who asks and what for. Here a header is believed; a real server authenticates first.
fn wanted(parts: &Parts) -> Result<Option<Wanted>, Rejection> {
    if parts.uri.path() == "/health" {
        return Ok(None);
    }
    let unknown = || {
        Rejection::new(StatusCode::UNAUTHORIZED, "say who you are in x-user")
            .header(WWW_AUTHENTICATE, HeaderValue::from_static("X-User"))
    };
    let user = parts.headers.get("x-user").ok_or_else(unknown)?.to_str()?;
    let limits = [Limit::per_minute("rpm", 5), Limit::per_minute("tpm", 1_000)];
    let wanted = Wanted::new(user, "echo").limits(limits).consume("rpm", 1);
    Ok(Some(wanted.consume("tpm", TOKENS_ESTIMATED)))
}

/// Four bytes are a token; what was estimated is corrected to it.
async fn echo(Extension(lease): Extension<LeaseHandle>, body: Bytes) -> (StatusCode, String) {
    let Ok(text) = std::str::from_utf8(&body) else {
        // Nothing was done, so nothing is owed.
        return match lease.give_back().await {
            Ok(_) => (StatusCode::BAD_REQUEST, "send text\n".to_owned()),
            Err(error) => (StatusCode::BAD_REQUEST, format!("send text ({error})\n")),
        };
    };
    let tokens = i64::try_from(text.len().div_ceil(4)).unwrap_or(i64::MAX);
    match lease.adjust("tpm", tokens.saturating_sub(TOKENS_ESTIMATED)).await {
        Ok(_) => (StatusCode::OK, format!("{tokens} tokens: {text}\n")),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// The same program over every store.
fn app<S: Store>(limiter: Limiter<S>) -> Router {
    Router::new()
        .route("/health", get(|| async { "well\n" }))
        .route("/echo", post(echo))
        .layer(RateLimitLayer::new(limiter, wanted))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let app = match std::env::var("SLUICEGATE_TABLE") {
        Ok(table) => {
            let https = aws_smithy_http_client::Builder::new()
                .tls_provider(Provider::Rustls(CryptoMode::Ring))
                .build_https();
            let aws =
                aws_config::defaults(BehaviorVersion::latest()).http_client(https).load().await;
            println!("balances are in the table {table}");
            app(Limiter::new(DynamoStore::new(aws_sdk_dynamodb::Client::new(&aws), table)))
        }
        Err(_) => {
            println!("balances are in memory; set SLUICEGATE_TABLE for a table on DynamoDB");
            app(Limiter::new(CompositeStore::on(MemoryTable::new())))
        }
    };
    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let at = listener.local_addr()?;
    println!("try:");
    println!("  curl -i -H 'x-user: alice' -d 'a few words' http://{at}/echo   # six times");
    println!(
        "  curl -i -H 'x-user: bob' -d \"$(head -c 8000 /dev/zero | tr '\\0' x)\" http://{at}/echo"
    );
    println!("  curl -i http://{at}/health   # not limited");
    axum::serve(listener, app).await?;
    Ok(())
}
