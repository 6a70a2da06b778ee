//! Shared parts of the suites: one suite, run on every table, or on every store if nothing in it
//! depends on tables.

use std::sync::Arc;
use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::leasing::LeasingStore;
use sluicegate::redis::RedisStore;
use sluicegate::settings::{BreakerConfig, StoreSettings};
use sluicegate::store::{MemoryTable, Store, Table};
use sluicegate::types::BucketId;
use sluicegate::{CompositeStore, Limiter, LimiterBuilder, OnUnavailable, TestClock};
use sluicegate_core::CompositeBucket;
pub(crate) use sluicegate_core::fixtures::{at, bucket, name};
use sluicegate_core::keys::ItemKey;
use sluicegate_testkit::{
    Proxy, RedisServer, RunningEngine, engines_under_test, is_redis_under_test,
};

/// Longer than any call takes, however busy the machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
pub(crate) const T0: i64 = 1_769_608_800_000;

/// A limiter by a clock that the test moves.
pub(crate) fn limiter<E: Engine>(engine: E, clock: &TestClock) -> Limiter {
    with_settings(engine, clock, StoreSettings::default())
}

/// The same on a table that only this test uses.
pub(crate) fn limiter_on<T: Table>(table: T, clock: &TestClock) -> Limiter {
    limiter_as(table, clock, StoreSettings::default())
}

pub(crate) fn limiter_as<T: Table>(
    table: T,
    clock: &TestClock,
    settings: StoreSettings,
) -> Limiter {
    patient(Limiter::builder(CompositeStore::with_settings(table, settings)).clock(clock.clone()))
}

pub(crate) fn with_settings<E: Engine>(
    engine: E,
    clock: &TestClock,
    settings: StoreSettings,
) -> Limiter {
    with_settings_of(engine, clock, settings).build()
}

/// The settings of such a limiter.
pub(crate) fn with_settings_of<E: Engine>(
    engine: E,
    clock: &TestClock,
    settings: StoreSettings,
) -> LimiterBuilder<E::Store> {
    patiently(Limiter::builder(engine.store(settings)).clock(clock.clone()))
}

pub(crate) fn builder<E: Engine>(engine: E, clock: &TestClock) -> LimiterBuilder<E::Store> {
    with_settings_of(engine, clock, StoreSettings::default())
}

/// A limiter that waits for its store on a busy machine, and does nothing without it.
pub(crate) fn patient<S: Store>(limiter: LimiterBuilder<S>) -> Limiter {
    patiently(limiter).build()
}

fn patiently<S: Store>(limiter: LimiterBuilder<S>) -> LimiterBuilder<S> {
    limiter.deadline(DEADLINE).on_unavailable(OnUnavailable::Deny).breaker(BreakerConfig::never())
}

/// Balances of which two limiters can have a store each, as two processes would.
pub(crate) trait Engine: Clone {
    type Store: LeasingStore;

    /// A store on them; settings that it does not have are left out.
    fn store(&self, settings: StoreSettings) -> Self::Store;
    /// The bucket as it is stored.
    async fn image(&self, bucket: &BucketId) -> Option<CompositeBucket>;
    /// Removes the bucket, as an expiry does.
    async fn forget(&self, bucket: &BucketId);
}

impl<T: Shared> Engine for T {
    type Store = CompositeStore<T>;

    fn store(&self, settings: StoreSettings) -> Self::Store {
        CompositeStore::with_settings(self.clone(), settings)
    }

    async fn image(&self, bucket: &BucketId) -> Option<CompositeBucket> {
        self.stored(bucket).await
    }

    async fn forget(&self, bucket: &BucketId) {
        self.place(bucket, None).await;
    }
}

/// A Redis.
#[derive(Clone)]
pub(crate) struct Redis(pub(crate) Arc<RedisServer>);

impl Engine for Redis {
    type Store = RedisStore;

    fn store(&self, _settings: StoreSettings) -> RedisStore {
        RedisStore::new(self.0.url()).unwrap()
    }

    async fn image(&self, bucket: &BucketId) -> Option<CompositeBucket> {
        self.store(StoreSettings::default()).bucket(bucket, DEADLINE).await.unwrap()
    }

    async fn forget(&self, bucket: &BucketId) {
        let key = format!("sluicegate:{{{}}}#{}", bucket.entity, bucket.resource);
        let deleted: i64 = self.0.send(redis::cmd("DEL").arg(key)).await;
        assert_eq!(deleted, 1);
    }
}

/// A table of which two limiters can have one each, as two processes would.
pub(crate) trait Shared: Table + Clone {
    /// The bucket as it is stored.
    async fn stored(&self, bucket: &BucketId) -> Option<CompositeBucket>;
    /// Puts a bucket, also over an existing one, or removes it.
    async fn place(&self, bucket: &BucketId, image: Option<CompositeBucket>);
}

/// Memory that several limiters share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<MemoryTable>);

impl Memory {
    /// The bucket as it is stored, without waiting.
    pub(crate) fn stored_now(&self, bucket: &BucketId) -> Option<Arc<CompositeBucket>> {
        self.0.bucket(bucket)
    }

    /// Puts an item into the table, past all limiters.
    pub(crate) fn put(&self, bucket: &BucketId, image: &CompositeBucket) {
        self.0.set(bucket, Some(image.clone()));
    }
}

impl Table for Memory {
    async fn write(
        &self,
        bucket: &BucketId,
        plan: &sluicegate_core::WritePlan,
    ) -> Result<sluicegate::store::Written, sluicegate::store::WriteError> {
        self.0.write(bucket, plan).await
    }

    async fn transact_write(
        &self,
        writes: &[(BucketId, sluicegate_core::WritePlan)],
        mark: Option<&sluicegate::store::Mark>,
        token: &str,
    ) -> Result<f64, sluicegate::store::TransactError> {
        self.0.transact_write(writes, mark, token).await
    }

    async fn read(
        &self,
        keys: &[ItemKey],
        consistency: sluicegate::store::Consistency,
    ) -> Result<sluicegate::store::ReadItems, sluicegate::store::TableError> {
        self.0.read(keys, consistency).await
    }
}

impl Shared for Memory {
    async fn stored(&self, bucket: &BucketId) -> Option<CompositeBucket> {
        self.0.bucket(bucket).map(|bucket| bucket.as_ref().clone())
    }

    async fn place(&self, bucket: &BucketId, image: Option<CompositeBucket>) {
        self.0.set(bucket, image);
    }
}

impl Shared for DynamoTable {
    async fn stored(&self, bucket: &BucketId) -> Option<CompositeBucket> {
        let key = ItemKey::Bucket(bucket.entity.clone(), bucket.resource.clone());
        let found = self.read(&[key], sluicegate::store::Consistency::Strong).await.unwrap();
        let item = found.items.into_iter().next().flatten()?;
        CompositeBucket::from_item(&item).unwrap()
    }

    async fn place(&self, bucket: &BucketId, image: Option<CompositeBucket>) {
        let key = ItemKey::Bucket(bucket.entity.clone(), bucket.resource.clone());
        let (client, table) = (self.client(), self.name());
        match image {
            Some(image) => {
                let item = image.to_item().into();
                client.put_item().table_name(table).set_item(Some(item)).send().await.unwrap();
            }
            None => {
                let delete = client.delete_item().table_name(table);
                let s = |text: String| aws_sdk_dynamodb::types::AttributeValue::S(text);
                delete.key("PK", s(key.pk())).key("SK", s(key.sk())).send().await.unwrap();
            }
        }
    }
}

/// Runs a suite on a fresh table of every kind.
pub(crate) async fn run_on_every_table(suite: impl Suite) {
    suite.run(Memory::default()).await;
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let name = engine.create_table().await;
        suite.run(DynamoTable::new(engine.client(), name)).await;
        engine.stop().await;
    }
}

/// Runs a suite on every table, and on Redis if that is under test.
pub(crate) async fn run_on_every_store(suite: impl EngineSuite) {
    run_on_every_table(OnTables(&suite)).await;
    if is_redis_under_test() {
        let server = Arc::new(RedisServer::start().await);
        suite.run(Redis(server.clone())).await;
    }
}

/// A suite that is the same for every store.
pub(crate) trait EngineSuite {
    async fn run<E: Engine>(&self, engine: E);
}

struct OnTables<'a, S>(&'a S);

impl<S: EngineSuite> Suite for OnTables<'_, S> {
    async fn run<T: Shared>(&self, table: T) {
        self.0.run(table).await;
    }
}

/// Compares capacity units, if the engines under test report them as AWS does.
macro_rules! assert_units {
    ($units:expr, $($expected:tt)+) => {
        let units = $units;
        if sluicegate_testkit::are_units_reported() {
            assert_eq!(units, $($expected)+);
        }
    };
}
pub(crate) use assert_units;

/// Makes a suite of an async function over any store.
macro_rules! on_every_store {
    ($suite:ident) => {{
        struct This;
        impl crate::support::EngineSuite for This {
            async fn run<E: crate::support::Engine>(&self, engine: E) {
                $suite(engine).await;
            }
        }
        crate::support::run_on_every_store(This).await;
    }};
}
pub(crate) use on_every_store;

/// A suite that is the same for every table.
pub(crate) trait Suite {
    async fn run<T: Shared>(&self, table: T);
}

/// Makes a suite of an async function over any table.
macro_rules! on_every_table {
    ($suite:ident) => {{
        struct This;
        impl crate::support::Suite for This {
            async fn run<T: crate::support::Shared>(&self, table: T) {
                $suite(table).await;
            }
        }
        crate::support::run_on_every_table(This).await;
    }};
}
pub(crate) use on_every_table;

/// An engine, a proxy in front of it, and a table through the proxy.
pub(crate) async fn proxied(engine: &RunningEngine) -> (Proxy, DynamoTable) {
    let name = engine.create_table().await;
    let proxy = Proxy::start(engine.endpoint_url()).await;
    let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
    (proxy, DynamoTable::new(&client, name))
}
