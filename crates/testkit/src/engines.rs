//! The DynamoDB engines of the suite, chosen by the environment; a test sees no difference between
//! them.
//!
//! `SLUICEGATE_TEST_ENDPOINT=<url>` runs it against that endpoint only;
//! `SLUICEGATE_TEST_ENGINES=embedded,ministack,moto,redis` chooses among those that are started
//! here, by default the embedded one, which needs nothing but Rust.
//! `SLUICEGATE_TEST_MINISTACK=<url>` names a MiniStack that is already running. Each test gets a
//! table of its own, so tests may share an endpoint. Redis is not a DynamoDB engine: tests that do
//! not depend on the store run over it too.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::types::TimeToLiveSpecification;
use sluicegate_local::poller::StreamSource;
use sluicegate_local::{EmbeddedEngine, Storage, client, table};

use crate::ministack::{EngineProcess, Permissions, Program};

const REDIS: &str = "redis";

/// An engine to test on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineKind {
    /// The engine of `sluicegate-local`, in memory, in this process.
    Embedded,
    /// MiniStack, a process of its own, installed by `cargo xtask engines`.
    MiniStack,
    /// moto, likewise. It reports capacity units by its own rules.
    Moto,
    /// The engine at this URL.
    Endpoint(String),
}

/// The DynamoDB engines that the environment asks for.
///
/// # Panics
/// If it names an unknown engine.
#[must_use]
pub fn engines_under_test() -> Vec<EngineKind> {
    let endpoint = std::env::var("SLUICEGATE_TEST_ENDPOINT").ok();
    choose(endpoint.as_deref(), named().as_deref())
}

/// True if every engine that the environment asks for reports capacity units as AWS does.
#[must_use]
pub fn are_units_reported() -> bool {
    !engines_under_test().contains(&EngineKind::Moto)
}

/// True if the environment asks for Redis.
#[must_use]
pub fn is_redis_under_test() -> bool {
    names_redis(named().as_deref())
}

fn named() -> Option<String> {
    std::env::var("SLUICEGATE_TEST_ENGINES").ok()
}

fn names_redis(names: Option<&str>) -> bool {
    names.is_some_and(|names| names.split(',').any(|name| name.trim() == REDIS))
}

fn choose(endpoint: Option<&str>, names: Option<&str>) -> Vec<EngineKind> {
    if let Some(url) = endpoint.filter(|url| !url.is_empty()) {
        return vec![EngineKind::Endpoint(url.to_owned())];
    }
    let names = names.filter(|names| !names.trim().is_empty()).unwrap_or("embedded");
    let kind = |name: &str| match name.trim() {
        "embedded" => Some(EngineKind::Embedded),
        "ministack" => Some(EngineKind::MiniStack),
        "moto" => Some(EngineKind::Moto),
        REDIS => None,
        other => panic!(
            "SLUICEGATE_TEST_ENGINES names {other:?}; known engines are embedded, ministack, moto and redis"
        ),
    };
    names.split(',').filter_map(kind).collect()
}

/// Runs a test on each engine under test in turn.
///
/// # Panics
/// If one cannot be started; the message says what to do.
pub async fn on_every_engine(test: impl AsyncFn(&RunningEngine)) {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        test(&engine).await;
        engine.stop().await;
    }
}

/// An engine that answers. Dropping it ends the processes started for it.
#[derive(Debug)]
pub struct RunningEngine {
    kind: EngineKind,
    endpoint_url: String,
    client: aws_sdk_dynamodb::Client,
    streams_client: aws_sdk_dynamodbstreams::Client,
    backing: Backing,
    tables: Mutex<Vec<String>>,
}

#[derive(Debug)]
enum Backing {
    Embedded(EmbeddedEngine),
    // Held for its Drop.
    Process { _process: EngineProcess },
    External,
}

impl RunningEngine {
    /// Starts an engine, or connects to it.
    ///
    /// # Panics
    /// If it cannot be started; the message says what to do.
    pub async fn start(kind: EngineKind) -> Self {
        let (endpoint_url, backing) = match &kind {
            EngineKind::Embedded => {
                let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
                (engine.endpoint_url(), Backing::Embedded(engine))
            }
            EngineKind::MiniStack => match std::env::var("SLUICEGATE_TEST_MINISTACK") {
                Ok(url) => (url, Backing::External),
                Err(_) => {
                    let process =
                        EngineProcess::start(Program::MiniStack(Permissions::Ignored)).await;
                    (process.endpoint_url(), Backing::Process { _process: process })
                }
            },
            EngineKind::Moto => {
                let process = EngineProcess::start(Program::Moto).await;
                (process.endpoint_url(), Backing::Process { _process: process })
            }
            EngineKind::Endpoint(url) => (url.clone(), Backing::External),
        };
        let (client, streams_client) = clients(&endpoint_url).await;
        let tables = Mutex::default();
        Self { kind, endpoint_url, client, streams_client, backing, tables }
    }

    /// The kind of this engine.
    pub fn kind(&self) -> &EngineKind {
        &self.kind
    }

    /// The URL of this engine.
    pub fn endpoint_url(&self) -> &str {
        &self.endpoint_url
    }

    /// A DynamoDB client for this engine, without retries.
    pub fn client(&self) -> &aws_sdk_dynamodb::Client {
        &self.client
    }

    /// A DynamoDB Streams client for this engine.
    pub fn streams_client(&self) -> &aws_sdk_dynamodbstreams::Client {
        &self.streams_client
    }

    /// The embedded engine, for operations that only it has (sweeping expired items on demand).
    pub fn embedded(&self) -> Option<&EmbeddedEngine> {
        match &self.backing {
            Backing::Embedded(engine) => Some(engine),
            Backing::Process { .. } | Backing::External => None,
        }
    }

    /// Creates the table of Sluicegate under a unique name; returns the name.
    ///
    /// # Panics
    /// If the engine refuses.
    pub async fn create_table(&self) -> String {
        let name = unique_table_name();
        table::create_table(&self.client, &name).await.unwrap();
        if self.kind == EngineKind::MiniStack {
            self.keep_expired(&name).await;
        }
        self.tables.lock().unwrap().push(name.clone());
        name
    }

    /// Turns expiry off on MiniStack, which deletes expired items every minute by the clock of this
    /// machine; tests have clocks of their own.
    async fn keep_expired(&self, table_name: &str) {
        let off = TimeToLiveSpecification::builder().enabled(false).attribute_name("ttl");
        let request = self.client.update_time_to_live().table_name(table_name);
        request.time_to_live_specification(off.build().unwrap()).send().await.unwrap();
    }

    /// The current stream of a table.
    ///
    /// # Panics
    /// If the table has none.
    pub async fn stream(&self, table_name: &str) -> StreamSource {
        let arn = table::stream_arn(&self.client, table_name).await.unwrap();
        StreamSource::new(self.streams_client.clone(), arn)
    }

    /// Ends the engine; on an endpoint that keeps running, deletes the tables created here. A test
    /// that fails before this leaves its tables there, for inspection.
    ///
    /// # Panics
    /// If a table cannot be deleted.
    pub async fn stop(self) {
        match self.backing {
            Backing::Embedded(engine) => engine.stop().await.unwrap(),
            Backing::Process { .. } => {}
            Backing::External => {
                for table in self.tables.into_inner().unwrap() {
                    self.client.delete_table().table_name(table).send().await.unwrap();
                }
            }
        }
    }
}

/// Engines on plain HTTP take any credentials; other endpoints get those of the environment.
async fn clients(url: &str) -> (aws_sdk_dynamodb::Client, aws_sdk_dynamodbstreams::Client) {
    if url.starts_with("http://") {
        return (client::dynamodb(url), client::streams(url));
    }
    let config = aws_config::defaults(BehaviorVersion::latest())
        .endpoint_url(url)
        .http_client(client::https_client())
        .load()
        .await;
    (aws_sdk_dynamodb::Client::new(&config), aws_sdk_dynamodbstreams::Client::new(&config))
}

/// At least 11 characters: the embedded engine builds shard ids from it, and SDKs refuse short ones.
fn unique_table_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Several processes, and earlier runs, may have used the same endpoint.
    format!("sluicegate-test-{:08x}-{count}", fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use aws_lambda_events::event::dynamodb::EventRecord;
    use aws_lambda_events::event::streams::DynamoDbEventResponse;
    use aws_sdk_dynamodb::types::AttributeValue;
    use serde_json::value::RawValue;
    use sluicegate_local::poller::{Handler, Poller, Settings};

    use super::*;

    #[test]
    fn the_environment_chooses() {
        use EngineKind::{Embedded, Endpoint, MiniStack};
        assert_eq!(choose(None, None), [Embedded]);
        assert_eq!(choose(Some(""), Some(" ")), [Embedded]);
        assert_eq!(choose(None, Some("ministack, embedded")), [MiniStack, Embedded]);
        assert_eq!(choose(None, Some("redis,embedded")), [Embedded]);
        assert!(names_redis(Some("embedded, redis")) && !names_redis(Some("embedded")));
        assert!(!names_redis(None));
        let url = "http://localhost:8000";
        assert_eq!(choose(Some(url), Some("ministack")), [Endpoint(url.into())]);
    }

    #[test]
    #[should_panic(expected = "known engines are embedded, ministack, moto and redis")]
    fn an_unknown_engine_is_named() {
        choose(None, Some("embedded,localstack"));
    }

    /// Counts the kinds of events in its batches.
    #[derive(Default)]
    struct Names(Mutex<Vec<String>>);

    impl Handler for Names {
        type Error = serde_json::Error;

        async fn handle(
            &self,
            records: &[Box<RawValue>],
        ) -> Result<DynamoDbEventResponse, Self::Error> {
            for record in records {
                let record: EventRecord = serde_json::from_str(record.get())?;
                self.0.lock().unwrap().push(record.event_name);
            }
            Ok(DynamoDbEventResponse::default())
        }
    }

    #[tokio::test]
    async fn every_engine_gives_tables_whose_streams_can_be_drained() {
        for kind in engines_under_test() {
            let engine = RunningEngine::start(kind).await;
            let (table, other) = (engine.create_table().await, engine.create_table().await);
            assert_ne!(table, other);
            assert!(table.len() >= 11);

            let key = ["PK", "SK"].map(|name| (name.to_owned(), AttributeValue::S("k".into())));
            let update = engine.client().update_item().table_name(&table);
            let update = update
                .set_key(Some(key.clone().into()))
                .update_expression("ADD n :one")
                .expression_attribute_values(":one", AttributeValue::N("1".into()));
            update.clone().send().await.unwrap();
            update.send().await.unwrap();
            let delete = engine.client().delete_item().table_name(&table);
            delete.set_key(Some(key.into())).send().await.unwrap();

            let names = Names::default();
            let stream = engine.stream(&table).await;
            let mut poller = Poller::new(stream, &names, Settings::default());
            poller.drain().await.unwrap();
            // A poller that continues gets no record twice.
            poller.drain().await.unwrap();
            let seen = names.0.into_inner().unwrap();
            assert_eq!(seen, ["INSERT", "MODIFY", "REMOVE"], "{:?}", engine.kind());
            engine.stop().await;
        }
    }
}
