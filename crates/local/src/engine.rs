//! A DynamoDB engine inside this process: dynoxide (DynamoDB on SQLite) behind an ephemeral port.
//!
//! It is reached over HTTP like any other engine, so that the code that runs against it is the code
//! that is deployed. It listens on 127.0.0.1 only, and ends with the value that holds it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dynoxide::Database;
use dynoxide::storage_backend::Clock as StorageClock;
use tempfile::TempDir;

use crate::Error;
use crate::lock::Lock;
use crate::server::{self, Server};
use crate::sqlite;

/// The place of the engine's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// In memory: gone when the engine stops. Every write scans all stream records so far, so it is
    /// for short runs.
    Memory,
    /// In a file of a temporary folder, which is deleted with the engine: for runs of any length.
    Temporary,
    /// In this SQLite file, created if absent.
    File(PathBuf),
}

/// A running engine. Dropping it stops it; [`stop`](Self::stop) also waits for that.
pub struct EmbeddedEngine {
    database: Database,
    file: Option<PathBuf>,
    server: Server,
    /// Held for its `Drop`, which must run after the server's.
    folder: Option<TempDir>,
    lock: Option<Lock>,
}

impl EmbeddedEngine {
    /// Opens the storage and serves it on an ephemeral loopback port, on the current tokio runtime.
    ///
    /// # Errors
    /// [`Error::InUse`] if another engine has the file, [`Error::Foreign`] and
    /// [`Error::HardLinked`] if no engine may have it, [`Error::Engine`] if the storage cannot be
    /// opened, [`Error::Port`] if no port can be bound.
    pub async fn start(storage: Storage) -> Result<Self, Error> {
        match storage {
            Storage::Memory => {
                let database = Database::memory().map_err(Error::engine("open its storage"))?;
                Self::serve(database, None, None).await
            }
            Storage::Temporary => {
                let folder = TempDir::with_prefix("sluicegate-")
                    .map_err(Error::engine("make a temporary folder"))?;
                let file = folder.path().join("engine.db");
                Self::serve(open(&file)?, Some(file), Some(folder)).await
            }
            Storage::File(file) => {
                let (lock, file) = Lock::of(&file)?;
                let database = match open(&file) {
                    Ok(database) => database,
                    Err(error) => {
                        lock.undo();
                        return Err(error);
                    }
                };
                let engine = Self::serve(database, Some(file), None).await?;
                Ok(Self { lock: Some(lock), ..engine })
            }
        }
    }

    /// An engine in memory whose stream and expiry use `clock`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with_clock(clock: impl sluicegate::Clock) -> Result<Self, Error> {
        let database = Database::memory_with_clock(Arc::new(EngineClock(clock)))
            .map_err(Error::engine("open its storage"))?;
        Self::serve(database, None, None).await
    }

    async fn serve(
        database: Database,
        file: Option<PathBuf>,
        folder: Option<TempDir>,
    ) -> Result<Self, Error> {
        let server = Server::start(server::listen(0).await?, database.clone())?;
        Ok(Self { database, file, server, folder, lock: None })
    }

    /// `http://127.0.0.1:<port>`.
    #[must_use]
    pub fn endpoint_url(&self) -> String {
        self.server.endpoint_url()
    }

    /// The engine's own handle, for operations that DynamoDB's API lacks.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// The SQLite file behind it, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Deletes every item whose TTL has passed; returns their number. The engine does so only on
    /// request, DynamoDB within days.
    ///
    /// # Errors
    /// [`Error::Engine`] if the storage fails.
    pub async fn sweep_ttl(&self) -> Result<usize, Error> {
        let database = self.database.clone();
        // A sweep waits for other users of the storage, some of which may need this thread.
        tokio::task::spawn_blocking(move || database.sweep_ttl())
            .await
            .map_err(Error::engine("sweep expired items"))?
            .map_err(Error::engine("sweep expired items"))
    }

    /// Stops listening, lets requests in flight finish for up to five seconds, and closes the
    /// storage.
    ///
    /// # Errors
    /// [`Error::Engine`] if the server ended with an error.
    pub async fn stop(self) -> Result<(), Error> {
        let Self { database, server, folder, lock, .. } = self;
        drop(database);
        let stopped = server.stop().await;
        drop((folder, lock));
        stopped
    }
}

impl std::fmt::Debug for EmbeddedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedEngine")
            .field("address", &self.server.address())
            .finish_non_exhaustive()
    }
}

/// Makes a clock of the limiter the engine's clock.
struct EngineClock<C>(C);

impl<C: sluicegate::Clock> StorageClock for EngineClock<C> {
    fn now_unix_secs(&self) -> u64 {
        self.0.now().get().unsigned_abs() / 1_000
    }

    fn now_unix_secs_f64(&self) -> f64 {
        Duration::from_millis(self.0.now().get().unsigned_abs()).as_secs_f64()
    }
}

fn open(file: &Path) -> Result<Database, Error> {
    let path = file.to_str().ok_or_else(|| Error::Setting {
        setting: "storage path",
        value: file.display().to_string(),
        range: "valid UTF-8",
    })?;
    let database = Database::new(path).map_err(Error::engine("open its storage"))?;
    sqlite::prepare(&database, file)?;
    Ok(database)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
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
    async fn a_file_has_one_engine_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("local.db");
        let storage = Storage::File(file.clone());
        let engine = EmbeddedEngine::start(storage.clone()).await.unwrap();
        let refused = EmbeddedEngine::start(storage.clone()).await.unwrap_err();
        assert!(matches!(&refused, Error::InUse { file: named } if *named == file), "{refused:?}");
        let link = folder.path().join("link.db");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let refused = EmbeddedEngine::start(Storage::File(link.clone())).await.unwrap_err();
        assert!(matches!(&refused, Error::InUse { file: named } if *named == file), "{refused:?}");
        std::fs::remove_file(&link).unwrap();
        std::fs::hard_link(&file, &link).unwrap();
        let refused = EmbeddedEngine::start(Storage::File(link.clone())).await.unwrap_err();
        assert!(matches!(&refused, Error::HardLinked { .. }), "{refused:?}");
        std::fs::remove_file(&link).unwrap();
        engine.stop().await.unwrap();
        let engine = EmbeddedEngine::start(storage.clone()).await.unwrap();
        drop(engine);
        EmbeddedEngine::start(storage).await.unwrap().stop().await.unwrap();
    }

    /// Every file of a folder with its content, except memory shared by readers of a log.
    fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let files = files.filter(|file| !file.to_str().unwrap().ends_with("-shm"));
        files.map(|file| (file.clone(), std::fs::read(file).unwrap())).collect()
    }

    #[tokio::test]
    async fn a_file_of_another_program_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        std::fs::write(file("notes.txt"), "not a database, but long enough to be one\n").unwrap();
        std::fs::write(file("short"), "x").unwrap();
        for (name, sql) in [
            ("rollback.db", "CREATE TABLE notes (body TEXT)"),
            ("wal.db", "PRAGMA journal_mode = WAL; CREATE TABLE notes (body TEXT)"),
            ("named.db", "PRAGMA application_id = 7; CREATE TABLE _tables (x)"),
            ("empty-named.db", "PRAGMA application_id = 7"),
            ("q?u#i%t.db", "CREATE TABLE _tables (x); CREATE TABLE notes (body TEXT)"),
        ] {
            rusqlite::Connection::open(file(name)).unwrap().execute_batch(sql).unwrap();
        }
        // One that is in use, with a log.
        let busy = rusqlite::Connection::open(file("busy.db")).unwrap();
        busy.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE notes (body TEXT)").unwrap();

        let before = contents(folder.path());
        for path in before.keys().filter(|path| !path.to_str().unwrap().contains("db-")) {
            let refused = EmbeddedEngine::start(Storage::File(path.clone())).await.unwrap_err();
            let is_text = !path.to_str().unwrap().ends_with("db");
            let is_said = matches!(refused, Error::Foreign { .. });
            assert!(is_said != is_text, "{path:?}: {refused:?}");
        }
        assert!(contents(folder.path()) == before, "{:?}", contents(folder.path()).keys());
        drop(busy);

        // An empty file belongs to no program, and a folder is not a file.
        std::fs::write(file("new.db"), "").unwrap();
        let engine = EmbeddedEngine::start(Storage::File(file("new.db"))).await.unwrap();
        engine.stop().await.unwrap();
        EmbeddedEngine::start(Storage::File(folder.path().into())).await.unwrap_err();
        let missing = folder.path().join("missing/local.db");
        EmbeddedEngine::start(Storage::File(missing)).await.unwrap_err();
        assert!(!folder.path().with_extension("-lock").exists());
    }

    #[tokio::test]
    async fn names_that_the_engine_keeps_for_itself_are_no_tables() {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        let client = client::dynamodb(&engine.endpoint_url());
        for name in ["_tables", "_CONFIG", "_stream_records", "sqlite_master"] {
            let created = table::create_table(&client, name).await.unwrap_err();
            assert!(format!("{created:?}").contains("ValidationException"), "{created:?}");
            let deleted = client.delete_table().table_name(name).send().await.unwrap_err();
            assert!(format!("{deleted:?}").contains("ValidationException"), "{deleted:?}");
        }
        table::create_table(&client, "tables").await.unwrap();
        engine.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_engine_no_longer_listens() {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        let address = engine.server.address();
        drop(engine);
        // The server sees the signal when it is next polled, not at once.
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
