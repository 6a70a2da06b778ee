//! Servers that can be ended and started again: every store joins the matrix by one `impl`.

use std::net::SocketAddr;

use sluicegate::dynamo::DynamoTable;
use sluicegate::redis::RedisStore;
use sluicegate::store::Store;
use sluicegate::{CompositeStore, DynamoStore};
use sluicegate_local::{EmbeddedEngine, Storage, client};
use sluicegate_testkit::RedisServer;

/// The data that a server keeps over a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    Lost,
}

/// A server of a test.
pub(crate) trait Server: Sized {
    type Store: Store;

    async fn start() -> Self;
    fn address(&self) -> SocketAddr;
    /// A store on the server at this address.
    fn store(&self, address: SocketAddr) -> Self::Store;
    /// Ends it as abruptly as possible.
    async fn end(&mut self);
    /// Starts it after its end, at another address.
    async fn start_again(&mut self, data: Data);
}

/// The embedded DynamoDB, on a file: a task of this process, which can only be asked to end.
pub(crate) struct Embedded {
    engine: Option<EmbeddedEngine>,
    folder: tempfile::TempDir,
    files: u32,
}

const TABLE: &str = "sluicegate-away";

impl Embedded {
    async fn serve(&mut self) {
        let file = self.folder.path().join(format!("{}.db", self.files));
        let is_new = !file.exists();
        let engine = EmbeddedEngine::start(Storage::File(file)).await.unwrap();
        if is_new {
            let client = client::dynamodb(&engine.endpoint_url());
            sluicegate::dynamo::create_table(&client, TABLE).await.unwrap();
        }
        self.engine = Some(engine);
    }
}

impl Server for Embedded {
    type Store = DynamoStore;

    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self { engine: None, folder, files: 0 };
        server.serve().await;
        server
    }

    fn address(&self) -> SocketAddr {
        let url = self.engine.as_ref().unwrap().endpoint_url();
        url.trim_start_matches("http://").parse().unwrap()
    }

    fn store(&self, address: SocketAddr) -> DynamoStore {
        let client = client::dynamodb(&format!("http://{address}"));
        CompositeStore::with_table(DynamoTable::new(&client, TABLE))
    }

    async fn end(&mut self) {
        self.engine.take().unwrap().stop().await.unwrap();
    }

    async fn start_again(&mut self, data: Data) {
        self.files += u32::from(data == Data::Lost);
        self.serve().await;
    }
}

/// A DurableRedis that writes everything to its file before it answers.
pub(crate) struct DurableRedis(RedisServer);

impl DurableRedis {
    /// Makes it forget every script.
    pub(crate) async fn flush_scripts(&self) {
        self.0.send(redis::cmd("SCRIPT").arg("FLUSH")).await
    }
}

impl Server for DurableRedis {
    type Store = RedisStore;

    async fn start() -> Self {
        Self(RedisServer::start_durable().await)
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn store(&self, address: SocketAddr) -> RedisStore {
        RedisStore::new(format!("redis://{address}/")).unwrap()
    }

    async fn end(&mut self) {
        self.0.kill();
    }

    async fn start_again(&mut self, data: Data) {
        match data {
            Data::Kept => self.0.start_again().await,
            Data::Lost => *self = Self::start().await,
        }
    }
}
