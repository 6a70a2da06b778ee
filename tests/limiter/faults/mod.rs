//! Faults between the limiter and the table; the request is granted once nevertheless.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluicegate::dynamo::DynamoTable;
use sluicegate::types::BucketId;
use sluicegate::{DynamoStore, Limit, Limiter, LimiterBuilder, TestClock};
use sluicegate_testkit::{Call, Fault, Proxy, RunningEngine, engines_under_test};

use crate::support::{Shared, T0, at, bucket, builder, name, proxied};

/// An engine, a connection to it that can be disturbed, and one that cannot.
struct Disturbed {
    engine: RunningEngine,
    proxy: Proxy,
    table: DynamoTable,
    direct: DynamoTable,
    clock: TestClock,
    /// Requests that were answered and never reached the engine.
    blanks: Arc<AtomicU64>,
}

impl Disturbed {
    fn limiter(&self) -> Limiter {
        self.builder().build()
    }

    fn builder(&self) -> LimiterBuilder<DynamoStore> {
        builder(self.table.clone(), &self.clock)
    }

    /// Faults for requests of one operation, the first of them being number 1.
    fn inject(
        &self,
        operation: &'static str,
        fault: impl Fn(u64) -> Fault + Send + Sync + 'static,
    ) {
        self.proxy.reset_counts();
        self.blanks.store(0, Ordering::Relaxed);
        let blanks = self.blanks.clone();
        self.proxy.inject(move |call: &Call<'_>| {
            let fault = if call.operation == operation { fault(call.number) } else { Fault::None };
            if matches!(fault, Fault::Blank(_)) {
                blanks.fetch_add(1, Ordering::Relaxed);
            }
            fault
        });
    }

    fn calm(&self) {
        self.proxy.inject(|_| Fault::None);
    }

    /// Waits until every request that arrived has had its effect.
    async fn all_landed(&self, operation: &str) {
        let landed = || self.proxy.forwarded(operation) + self.blanks.load(Ordering::Relaxed);
        while landed() < self.proxy.received(operation) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Balance and counter of `rpm`, in whole tokens.
    async fn rpm(&self, entity: &str) -> (i64, i64) {
        let stored = self.direct.stored(&id(entity)).await.unwrap();
        let rpm = stored.limits[&name("rpm")];
        assert_eq!((rpm.tokens.get() % 1_000, rpm.consumed.get() % 1_000), (0, 0));
        (rpm.tokens.get() / 1_000, i64::try_from(rpm.consumed.get() / 1_000).unwrap())
    }
}

async fn on_every_engine(suite: impl AsyncFn(&Disturbed)) {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let (proxy, table) = proxied(&engine).await;
        let direct = DynamoTable::new(engine.client(), table.name());
        let (clock, blanks) = (TestClock::at(at(T0)), Arc::default());
        let disturbed = Disturbed { engine, proxy, table, direct, clock, blanks };
        suite(&disturbed).await;
        disturbed.engine.stop().await;
    }
}

fn id(entity: &str) -> BucketId {
    bucket(entity, "r")
}

/// One token a second, 60 at once: the tests compute with whole tokens only.
fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 60)]
}

/// Asks for 5 of `rpm`.
macro_rules! ask {
    ($limiter:expr, $entity:expr) => {
        $limiter.acquire($entity, "r").consume("rpm", 5).limits(rpm()).no_cascade()
    };
    ($limiter:expr, $entity:expr, $parent:expr) => {
        $limiter.acquire($entity, "r").consume("rpm", 5).limits(rpm()).cascade_to($parent)
    };
}

mod buckets;
mod corrections;
mod lost;
mod refused;

/// Longer than any call here may take; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_secs(1);
/// Far more than the attempts of one call take.
const AMPLE: Duration = Duration::from_secs(60);

async fn in_time<T>(call: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let result = call.await;
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    result
}
