//! An engine behind a proxy, and independent limiters on it.

use std::time::Duration;

use sluicegate::settings::{BreakerConfig, Cascade};
use sluicegate::{DynamoStore, Limit, Limiter, OnUnavailable};
use sluicegate_local::{EmbeddedEngine, Storage, client};
use sluicegate_testkit::{Fault, Proxy};

use crate::measured::create_table;

const TABLE: &str = "sluicegate-bench";

pub(crate) struct Bed {
    engine: EmbeddedEngine,
    pub(crate) proxy: Proxy,
}

impl Bed {
    /// An engine whose every answer takes this much longer.
    pub(crate) async fn with_latency(latency: Duration) -> Self {
        let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
        create_table(&client::dynamodb(&engine.endpoint_url()), TABLE).await;
        let proxy = Proxy::start(&engine.endpoint_url()).await;
        if !latency.is_zero() {
            proxy.inject(move |_| Fault::Delay(latency));
        }
        Self { engine, proxy }
    }

    /// A process: a limiter with connections and a memory of its own.
    pub(crate) fn process(&self) -> Limiter {
        let client = client::dynamodb(&self.proxy.endpoint_url());
        Limiter::builder(DynamoStore::new(client, TABLE))
            .cascade(Cascade::No)
            .deadline(Duration::from_secs(30))
            .on_unavailable(OnUnavailable::Deny)
            .breaker(BreakerConfig::never())
            .build()
    }

    /// Writes that arrived, and those among them that failed: a unit each, because an item is
    /// smaller than a kilobyte.
    pub(crate) fn writes(&self) -> f64 {
        (self.proxy.received("UpdateItem") + self.proxy.received("PutItem")) as f64
    }

    pub(crate) async fn stop(self) {
        self.engine.stop().await.unwrap();
    }
}

/// More than any request takes.
pub(crate) fn plenty() -> [Limit; 2] {
    ["rpm", "tpm"].map(|name| Limit::per_minute(name, 1_000_000_000_000))
}
