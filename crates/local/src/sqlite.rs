//! Adds to a file of the engine: an index on its stream records, trimming of processed records, and
//! commits that need not wait for the disk.
//!
//! With every write, the engine looks up the newest sequence number of the table among all stream
//! records, without an index and as text: 1,500 writes/s at first, 700/s after 10,000 records. It
//! offers no way to change that, but another connection to its SQLite file does. Only this file
//! knows the engine's tables, and the tests detect a new version of the engine that changes them.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dynoxide::Database;
use rusqlite::{Connection, OptionalExtension, params};

use crate::Error;
use crate::poller::Position;

/// An index on the columns by which the engine looks up stream records; it also reads the range of
/// a shard.
const INDEX: &str = "CREATE INDEX IF NOT EXISTS sluicegate_stream_order
    ON _stream_records (table_name, CAST(sequence_number AS INTEGER), shard_id)";

/// The newest sequence number before the newest `?2` records of a table.
const OLDEST_KEPT: &str = "SELECT CAST(sequence_number AS INTEGER) FROM _stream_records
    WHERE table_name = ?1 ORDER BY CAST(sequence_number AS INTEGER) DESC LIMIT 1 OFFSET ?2";

/// Deletes, of the oldest records up to `?2`, those up to `?3` or from before `?4`.
const TRIM: &str = "DELETE FROM _stream_records WHERE id IN (
        SELECT id FROM _stream_records
        WHERE table_name = ?1 AND CAST(sequence_number AS INTEGER) <= ?2
        ORDER BY CAST(sequence_number AS INTEGER) LIMIT ?5)
    AND (CAST(sequence_number AS INTEGER) <= ?3 OR created_at < ?4)";

const OLDEST_SECONDS: &str = "SELECT created_at FROM _stream_records
    WHERE table_name = ?1 ORDER BY CAST(sequence_number AS INTEGER) LIMIT 1";

/// The offset that the engine adds to its stored numbers, to make 21 digits of them.
const PUBLIC_OFFSET: u128 = 100_000_000_000_000_000_000;
/// The most records deleted at once: a write of the engine waits no longer than that takes.
const TRIMMED_AT_ONCE: usize = 500;
/// Longer than any transaction of the engine.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// Records that trimming keeps, though they were processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The newest ones, for comparisons of windows with the stream.
    pub(crate) newest: u32,
    /// Those that are at most this old. DynamoDB keeps all records for 24 hours.
    pub(crate) within: Duration,
}

/// Prepares an open file for long runs. A commit is in the log when it is acknowledged, so a killed
/// process loses none; only a machine that stops at once may lose the last ones.
pub(crate) fn prepare(database: &Database, file: &Path) -> Result<(), Error> {
    // The engine's name for `PRAGMA synchronous = NORMAL` and SQLite's defaults.
    database.disable_bulk_loading().map_err(Error::engine("set up its storage"))?;
    let connection = connect(file).map_err(Error::engine("open its storage twice"))?;
    connection.execute(INDEX, []).map_err(Error::engine("index its stream"))?;
    Ok(())
}

/// The stream records of one table in an engine's file.
#[derive(Debug, Clone)]
pub(crate) struct StreamLog {
    connection: Arc<Mutex<Connection>>,
    table: String,
}

impl StreamLog {
    pub(crate) fn open(file: &Path, table: &str) -> Result<Self, Error> {
        let connection = connect(file).map_err(Error::engine("open its storage twice"))?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)), table: table.to_owned() })
    }

    /// Deletes processed records up to a position, except those to be kept. Returns true if all
    /// remaining records are within the time of `keep`.
    pub(crate) async fn trim(&self, processed: &Position, keep: Keep) -> Result<bool, Error> {
        let Some(processed) = stored(processed) else { return Ok(false) };
        let (log, since_s) = (self.clone(), seconds_ago(keep.within));
        let trim = move || {
            log.delete(processed, keep.newest, since_s)?;
            let oldest_s = log.oldest_s()?;
            Ok(oldest_s.is_none_or(|oldest_s| oldest_s >= since_s))
        };
        tokio::task::spawn_blocking(trim)
            .await
            .map_err(Error::engine("trim its stream"))?
            .map_err(Error::engine::<rusqlite::Error>("trim its stream"))
    }

    fn delete(&self, processed: i64, newest: u32, since_s: i64) -> rusqlite::Result<()> {
        let kept: Option<i64> = self.with(|connection| {
            connection
                .query_row(OLDEST_KEPT, params![self.table, newest], |row| row.get(0))
                .optional()
        })?;
        loop {
            let deleted = self.with(|connection| {
                let kept = kept.unwrap_or(i64::MIN);
                connection.prepare_cached(TRIM)?.execute(params![
                    self.table,
                    processed,
                    kept,
                    since_s,
                    TRIMMED_AT_ONCE
                ])
            })?;
            if deleted < TRIMMED_AT_ONCE {
                return Ok(());
            }
        }
    }

    fn oldest_s(&self) -> rusqlite::Result<Option<i64>> {
        self.with(|connection| {
            connection.query_row(OLDEST_SECONDS, [&self.table], |row| row.get(0)).optional()
        })
    }

    fn with<T>(&self, query: impl FnOnce(&Connection) -> T) -> T {
        query(&self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn connect(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

/// The number under which the engine stores a record.
fn stored(position: &Position) -> Option<i64> {
    let public: u128 = position.as_str().parse().ok()?;
    i64::try_from(public.checked_sub(PUBLIC_OFFSET)?).ok()
}

fn seconds_ago(duration: Duration) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.saturating_sub(duration).as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::AttributeValue;

    use super::*;
    use crate::poller::{Record, Source, StreamSource};
    use crate::{EmbeddedEngine, Storage, client, table};

    const TABLE: &str = "sluicegate-sqlite";
    const DAY: Duration = Duration::from_secs(86_400);

    struct Fixture {
        engine: EmbeddedEngine,
        client: aws_sdk_dynamodb::Client,
        source: StreamSource,
    }

    impl Fixture {
        async fn start() -> Self {
            let engine = EmbeddedEngine::start(Storage::Temporary).await.unwrap();
            let client = client::dynamodb(&engine.endpoint_url());
            table::create_table(&client, TABLE).await.unwrap();
            let arn = table::stream_arn(&client, TABLE).await.unwrap();
            let source = StreamSource::new(client::streams(&engine.endpoint_url()), arn);
            Self { engine, client, source }
        }

        /// Writes another item.
        async fn write(&self, pk: impl std::fmt::Display) {
            let request = self.client.put_item().table_name(TABLE);
            let request = request.item("PK", AttributeValue::S(pk.to_string()));
            request.item("SK", AttributeValue::S("s".into())).send().await.unwrap();
        }

        async fn records(&self) -> Vec<Record> {
            let shards = self.source.shards().await.unwrap();
            self.source.read(&shards[0].id, None, 1_000).await.unwrap().records
        }

        fn connection(&self) -> Connection {
            connect(self.engine.file().unwrap()).unwrap()
        }
    }

    /// Makes SQLite believe that our index has the opposite order of the stored one.
    fn turn_round(connection: &Connection) {
        let believed = INDEX
            .replace("IF NOT EXISTS ", "")
            .replace("(sequence_number AS INTEGER)", "(sequence_number AS INTEGER) DESC");
        assert!(believed.contains(" DESC"));
        let version: i64 =
            connection.query_row("PRAGMA schema_version", [], |row| row.get(0)).unwrap();
        connection.execute_batch("PRAGMA writable_schema = ON").unwrap();
        let update = "UPDATE sqlite_master SET sql = ?1 WHERE name = 'sluicegate_stream_order'";
        assert_eq!(connection.execute(update, [believed]).unwrap(), 1);
        connection.execute_batch(&format!("PRAGMA schema_version = {}", version + 1)).unwrap();
    }

    /// Adds a record like the existing ones.
    fn insert(connection: &Connection, number: i64) {
        let insert = "INSERT INTO _stream_records
            (table_name, event_name, keys_json, sequence_number, shard_id, created_at)
            SELECT table_name, event_name, keys_json, ?1, shard_id, created_at
            FROM _stream_records LIMIT 1";
        assert_eq!(connection.execute(insert, [number.to_string()]).unwrap(), 1);
    }

    /// Only a query that reads one end of our index, or reads in its order, is misled by an index
    /// with the wrong believed order. So this test covers the engine's own queries, not copies.
    #[tokio::test]
    async fn the_engine_finds_its_records_by_the_order_of_our_index() {
        let fixture = Fixture::start().await;
        fixture.write("first").await;
        let far = i64::MAX / 2;
        insert(&fixture.connection(), far);
        insert(&fixture.connection(), far + 10);
        let newest = || -> i64 {
            let newest = "SELECT sequence_number FROM _stream_records ORDER BY id DESC LIMIT 1";
            let text: String =
                fixture.connection().query_row(newest, [], |row| row.get(0)).unwrap();
            text.parse().unwrap()
        };

        turn_round(&fixture.connection());
        let read = fixture.records().await;
        let read: Vec<i64> = read.iter().map(|r| stored(&r.position).unwrap() - far).collect();
        assert_eq!(read[..2], [10, 0], "reading goes by the index");
        fixture.write("second").await;
        assert!(newest() < far, "writing looks at one end of the index");

        // Without the index nothing misleads, or this test would prove nothing.
        fixture.connection().execute("DROP INDEX sluicegate_stream_order", []).unwrap();
        fixture.write("third").await;
        assert_eq!(newest(), far + 11);
        fixture.engine.stop().await.unwrap();
    }

    #[tokio::test]
    async fn trimming_takes_what_was_processed_and_keeps_the_newest() {
        let fixture = Fixture::start().await;
        for n in 0..20 {
            fixture.write(n).await;
        }
        let log = StreamLog::open(fixture.engine.file().unwrap(), TABLE).unwrap();
        let before = fixture.records().await;
        let left = async |processed: usize, newest| {
            let keep = Keep { newest, within: DAY };
            assert!(log.trim(&before[processed - 1].position, keep).await.unwrap());
            fixture.records().await.len()
        };
        assert_eq!(left(8, 15).await, 15, "the newest are kept");
        assert_eq!(left(8, 4).await, 12, "what was not processed is kept");
        assert_eq!(left(20, 4).await, 4);

        // An engine that continues numbers its records on.
        fixture.write("later").await;
        let newest = fixture.records().await.pop().unwrap();
        assert!(newest.position.as_str() > before[19].position.as_str());
        fixture.engine.stop().await.unwrap();
    }

    #[tokio::test]
    async fn processed_records_are_trimmed_in_time_and_the_rest_is_reported() {
        let fixture = Fixture::start().await;
        for n in 0..1_200 {
            fixture.write(n).await;
        }
        let age = "UPDATE _stream_records SET created_at = created_at - 100000
            WHERE id <= (SELECT MIN(id) FROM _stream_records) + 1099";
        assert_eq!(fixture.connection().execute(age, []).unwrap(), 1_100);
        let log = StreamLog::open(fixture.engine.file().unwrap(), TABLE).unwrap();
        let keep = Keep { newest: 10_000, within: DAY };
        let before = fixture.records().await;
        assert!(!log.trim(&before[599].position, keep).await.unwrap(), "500 old ones are left");
        assert_eq!(fixture.records().await.len(), 600);
        let last = fixture.records().await.pop().unwrap();
        assert!(log.trim(&last.position, keep).await.unwrap());
        assert_eq!(fixture.records().await.len(), 100);
        fixture.engine.stop().await.unwrap();
    }
}
