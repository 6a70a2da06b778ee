//! Producers that acquire and record the answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use sluicegate::dynamo::DynamoTable;
use sluicegate::settings::BreakerConfig;
use sluicegate::{AcquireError, CompositeStore, Limit, Limiter, OnUnavailable};
use sluicegate_local::client;
use tokio::task::JoinSet;

pub(crate) const TABLE: &str = "sluicegate-limits";
pub(crate) const LIMIT: &str = "tpd";

/// Bounds of the consumption, in tokens.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// Granted less returned, and less the tokens that may have been returned.
    pub(crate) least: i128,
    /// Granted less returned, plus the tokens that may have been taken besides.
    pub(crate) most: i128,
    /// Requests that were granted.
    pub(crate) granted: u64,
}

/// The answers to producers, by entity.
pub(crate) type Books = BTreeMap<String, Told>;

/// Eight producers on three buckets, until they are stopped.
pub(crate) struct Producers {
    tasks: JoinSet<Books>,
    stop: Arc<AtomicBool>,
}

impl Producers {
    /// Starts them; each call may take `deadline`.
    pub(crate) fn start(url: &str, seed: u64, deadline: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for producer in 0..8 {
            let rng = Rng::with_seed(seed ^ (producer << 32));
            tasks.spawn(produce(url.to_owned(), rng, deadline, stop.clone()));
        }
        Self { tasks, stop }
    }

    pub(crate) async fn stop(mut self) -> Books {
        self.stop.store(true, Ordering::Relaxed);
        let mut books = Books::new();
        while let Some(of_one) = self.tasks.join_next().await {
            for (entity, told) in of_one.unwrap() {
                let sum = books.entry(entity).or_default();
                sum.least += told.least;
                sum.most += told.most;
                sum.granted += told.granted;
            }
        }
        books
    }
}

async fn produce(url: String, mut rng: Rng, deadline: Duration, stop: Arc<AtomicBool>) -> Books {
    let table = DynamoTable::new(&client::dynamodb(&url), TABLE);
    let limiter = Limiter::builder(CompositeStore::with_table(table))
        .deadline(deadline)
        .connect_deadline(deadline)
        .on_unavailable(OnUnavailable::Deny)
        .breaker(BreakerConfig::never())
        .build();
    let mut books = Books::new();
    while !stop.load(Ordering::Relaxed) {
        let entity = format!("user-{}", rng.u8(0..3));
        let tokens = rng.u16(1..100);
        let told = books.entry(entity.clone()).or_default();
        let amount = i128::from(tokens);

        let doubts = limiter.counters().ambiguous.get();
        let limits = [Limit::per_day(LIMIT, 1_000_000_000)];
        let request = limiter.acquire(&entity, "model").consume(LIMIT, tokens.into());
        let permit = request.limits(limits).no_cascade().await;
        // Each of these may have taken the tokens once more.
        told.most += amount * i128::from(limiter.counters().ambiguous.get() - doubts);
        match permit {
            Ok(permit) => {
                told.granted += 1;
                told.least += amount;
                told.most += amount;
                if rng.u8(0..8) == 0 {
                    let returned = permit.release().await.is_ok();
                    told.least -= amount;
                    told.most -= if returned { amount } else { 0 };
                }
            }
            Err(AcquireError::Contended { .. } | AcquireError::Unavailable(_)) => {
                told.most += amount;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    books
}
