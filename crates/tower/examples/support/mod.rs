//! Shared parts of the example servers: a table, and a port of this machine.
//!
//! Without any environment, the table is an empty one on a DynamoDB engine in this process. With
//! `SLUICEGATE_TABLE`, it is the table of that name, by the usual AWS environment (region,
//! credentials, `AWS_ENDPOINT_URL`). With `AWS_ENDPOINT_URL` alone it is `sluicegate-limits` there,
//! created if it is missing. `PORT` chooses another port than 3000; 0 chooses a free one.

use std::env;
use std::net::Ipv4Addr;

use aws_config::BehaviorVersion;
use axum::Router;
use sluicegate::DynamoStore;
use sluicegate::dynamo::{TableSetupError, create_table};
use sluicegate::error::BoxError;
use sluicegate_local::{EmbeddedEngine, Storage, client};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

const TABLE: &str = "sluicegate-limits";

/// A table's store, and the values that must live as long as it is used.
pub(crate) struct Place {
    pub(crate) store: DynamoStore,
    /// The engine ends with the value that holds it.
    _engine: Option<EmbeddedEngine>,
}

/// The table that the environment names, or one in this process.
pub(crate) async fn place() -> Result<Place, BoxError> {
    let named = env::var("SLUICEGATE_TABLE").ok();
    let endpoint_url = env::var("AWS_ENDPOINT_URL").ok();
    let mut engine = None;
    let client = if named.is_none() && endpoint_url.is_none() {
        let engine = engine.insert(EmbeddedEngine::start(Storage::Memory).await?);
        client::dynamodb(&engine.endpoint_url())
    } else {
        let aws = aws_config::defaults(BehaviorVersion::latest());
        let aws = aws.http_client(client::https_client()).load().await;
        aws_sdk_dynamodb::Client::new(&aws)
    };
    if named.is_none() {
        match create_table(&client, TABLE).await {
            Ok(()) | Err(TableSetupError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let table = named.as_deref().unwrap_or(TABLE);
    let endpoint_url = endpoint_url.or(engine.as_ref().map(EmbeddedEngine::endpoint_url));
    tracing::info!(table, endpoint_url, "balances are here");
    Ok(Place { store: DynamoStore::new(client, table), _engine: engine })
}

/// A port of this machine.
pub(crate) async fn port() -> Result<TcpListener, BoxError> {
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?)
}

/// Serves requests until the process is told to end; requests in flight are finished.
pub(crate) async fn listen(listener: TcpListener, app: Router) -> Result<(), BoxError> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let end = async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    };
    axum::serve(listener, app).with_graceful_shutdown(end).await?;
    Ok(())
}
