//! One of several processes that lease from one bucket.
//!
//! `leaser STORE TABLE TASKS PER_SECOND SECONDS PER_MINUTE BURST ACCOUNTING END`: every task asks
//! for one token of `rps` at an even pace. Each admission is a byte on the standard output, so that
//! those of a process that is killed are known; the last byte is `.` if everything was settled, and
//! before it comes a `u` for each write that counts as ambiguous. The store is the address of an
//! engine, or of a Redis, for which the table is only a name. The end is `settle`, or `idle` for a
//! process that stops asking and waits to be killed.
#![allow(clippy::unwrap_used, reason = "a tool of one test")]

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::dynamo::DynamoTable;
use sluicegate::leasing::{Accounting, LeasingStore};
use sluicegate::redis::RedisStore;
use sluicegate::{
    AcquireError, CompositeStore, LeaseMode, LeaseSettings, Limit, Limiter, OnUnavailable,
};

struct Load {
    tasks: u32,
    per_s: u64,
    seconds: u64,
    limit: Limit,
    accounting: Accounting,
    ends_idle: bool,
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [store, table, tasks, per_s, seconds, per_minute, burst, accounting, end] = args.as_slice()
    else {
        panic!("see the first lines of this program")
    };
    let number = |text: &String| -> u64 { text.parse().unwrap() };
    let at_settle = accounting == "at-settle";
    let load = Load {
        tasks: tasks.parse().unwrap(),
        per_s: number(per_s),
        seconds: number(seconds),
        limit: Limit::per_minute("rps", number(per_minute)).burst(number(burst)),
        accounting: if at_settle { Accounting::AtSettle } else { Accounting::AtLease },
        ends_idle: end == "idle",
    };
    if store.starts_with("redis:") {
        load.run(RedisStore::new(store.as_str()).unwrap().prefix(table)).await;
    } else {
        let table = DynamoTable::new(&sluicegate_local::client::dynamodb(store), table);
        load.run(CompositeStore::with_table(table)).await;
    }
}

impl Load {
    async fn run(self, store: impl LeasingStore) {
        let mode = LeaseMode::Strict(self.accounting);
        let settings = LeaseSettings { mode, ..LeaseSettings::default() };
        let limiter = Limiter::builder(store)
            .leasing(settings)
            .deadline(Duration::from_secs(20))
            .on_unavailable(OnUnavailable::Deny)
            .build();
        let call = limiter.acquire("shared", "r").consume("rps", 1).limits([self.limit]);
        let call = Arc::new(call.no_cascade().prepare().await.unwrap());
        let start = Instant::now();
        let end = start + Duration::from_secs(self.seconds);
        let every = Duration::from_secs(self.tasks.into()).div_f64(self.per_s as f64);
        let mut work = tokio::task::JoinSet::new();
        for task in 0..self.tasks {
            let call = call.clone();
            work.spawn(async move {
                let mut next = start + every.mul_f64(f64::from(task) / 16.0);
                // A machine that cannot keep up asks less often, not longer.
                while next < end && Instant::now() < end {
                    tokio::time::sleep_until(next.into()).await;
                    next += every;
                    match call.acquire().await {
                        Ok(_) => say(b"a"),
                        Err(AcquireError::LimitExceeded(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        while let Some(result) = work.join_next().await {
            result.unwrap();
        }
        if self.ends_idle {
            std::future::pending::<()>().await;
        }
        let report = limiter.shutdown(Duration::from_secs(20)).await;
        assert!(report.unsettled.is_empty(), "{report:?}");
        for _ in 0..limiter.counters().ambiguous.get() {
            say(b"u");
        }
        say(b".");
    }
}

fn say(byte: &[u8]) {
    std::io::stdout().write_all(byte).unwrap();
    // Standard output buffers data without a line end.
    std::io::stdout().flush().unwrap();
}
