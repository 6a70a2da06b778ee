//! A DynamoDB engine inside this process: dynoxide (DynamoDB on SQLite) behind an ephemeral port.
//!
//! It is reached over HTTP like any other, so that the code which runs against it is the code that
//! is deployed. It listens on 127.0.0.1 only, and ends with the value that holds it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dynoxide::Database;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::Error;

/// How long [`EmbeddedEngine::stop`] lets requests finish that are under way.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Where the engine keeps its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// In memory: gone when the engine stops.
    Memory,
    /// In this SQLite file, created when absent.
    File(PathBuf),
}

/// A running engine. Dropping it stops it; [`stop`](Self::stop) also waits for that.
pub struct EmbeddedEngine {
    database: Database,
    address: SocketAddr,
    server: JoinHandle<Result<(), String>>,
    /// Dropping the sender is the signal, so a dropped engine stops without further code.
    stopping: oneshot::Sender<()>,
}

impl EmbeddedEngine {
    /// Opens the storage and serves it on an ephemeral loopback port, on the current tokio runtime.
    ///
    /// # Errors
    /// [`Error::Engine`] when the storage cannot be opened or no port can be bound.
    pub async fn start(storage: Storage) -> Result<Self, Error> {
        let database = open(storage)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(cannot("listen"))?;
        let address = listener.local_addr().map_err(cannot("listen"))?;
        let (stopping, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let server = tokio::spawn(dynoxide::server::serve_with_shutdown(
            listener,
            database.clone(),
            shutdown,
        ));
        Ok(Self { database, address, server, stopping })
    }

    /// `http://127.0.0.1:<port>`.
    #[must_use]
    pub fn endpoint_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The engine's own handle, for what DynamoDB's API does not offer.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Deletes every item whose TTL has passed, now; returns how many. The engine does so only when
    /// asked, DynamoDB within days.
    ///
    /// # Errors
    /// [`Error::Engine`] when the storage fails.
    pub async fn sweep_ttl(&self) -> Result<usize, Error> {
        let database = self.database.clone();
        // A sweep waits for other users of the storage, some of whom may need this thread.
        tokio::task::spawn_blocking(move || database.sweep_ttl())
            .await
            .map_err(cannot("sweep expired items"))?
            .map_err(cannot("sweep expired items"))
    }

    /// Stops listening, lets requests under way finish for up to five seconds, closes the storage.
    ///
    /// # Errors
    /// [`Error::Engine`] when the server ended with an error.
    pub async fn stop(self) -> Result<(), Error> {
        let Self { database, mut server, stopping, .. } = self;
        drop(stopping);
        drop(database);
        let Ok(ended) = tokio::time::timeout(STOP_GRACE, &mut server).await else {
            server.abort();
            return Ok(());
        };
        ended.map_err(cannot("stop"))?.map_err(cannot("stop"))
    }
}

impl std::fmt::Debug for EmbeddedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedEngine").field("address", &self.address).finish_non_exhaustive()
    }
}

fn open(storage: Storage) -> Result<Database, Error> {
    match storage {
        Storage::Memory => Database::memory().map_err(cannot("open its storage")),
        Storage::File(path) => {
            let path = path.to_str().ok_or_else(|| Error::Setting {
                setting: "storage path",
                value: path.display().to_string(),
                range: "valid UTF-8",
            })?;
            Database::new(path).map_err(cannot("open its storage"))
        }
    }
}

fn cannot<E: Into<crate::BoxError>>(action: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Engine { action, source: source.into() }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use aws_sdk_dynamodb::types::AttributeValue;

    use super::*;
    use crate::{client, table};

    const TABLE: &str = "sluicegate-engine";

    async fn put(client: &aws_sdk_dynamodb::Client, pk: &str, ttl_epoch_seconds: u64) {
        client
            .put_item()
            .table_name(TABLE)
            .item("PK", AttributeValue::S(pk.into()))
            .item("SK", AttributeValue::S("s".into()))
            .item("ttl", AttributeValue::N(ttl_epoch_seconds.to_string()))
            .send()
            .await
            .unwrap();
    }

    async fn count(client: &aws_sdk_dynamodb::Client) -> i32 {
        client.scan().table_name(TABLE).send().await.unwrap().count()
    }

    #[tokio::test]
    async fn a_sweep_deletes_what_has_expired_and_nothing_else() {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        let client = client::dynamodb(&engine.endpoint_url());
        table::create_table(&client, TABLE).await.unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        put(&client, "gone", now - 60).await;
        put(&client, "kept", now + 3_600).await;
        assert_eq!(engine.sweep_ttl().await.unwrap(), 1);
        assert_eq!(count(&client).await, 1);
        engine.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_file_outlives_its_engine() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::File(folder.path().join("local.db"));

        let engine = EmbeddedEngine::start(storage.clone()).await.unwrap();
        let client = client::dynamodb(&engine.endpoint_url());
        table::create_table(&client, TABLE).await.unwrap();
        put(&client, "kept", 4_102_444_800).await;
        engine.stop().await.unwrap();

        let engine = EmbeddedEngine::start(storage).await.unwrap();
        let client = client::dynamodb(&engine.endpoint_url());
        assert_eq!(count(&client).await, 1);
        engine.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_engine_no_longer_listens() {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        let address = engine.address;
        drop(engine);
        // The server sees the signal when it is next polled, not at once.
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
