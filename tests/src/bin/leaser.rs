//! One of several processes that lease from one bucket.
//!
//! `leaser ENDPOINT TABLE TASKS PER_SECOND SECONDS PER_MINUTE BURST ACCOUNTING`: every task asks for
//! one token of `rps` at an even pace. Each admission is a byte on the standard output, so that those
//! of a process that is killed are known; the last one is `.` when everything was settled.
#![allow(clippy::unwrap_used, reason = "a tool of one test")]

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::{
    Accounting, AcquireError, CompositeStore, DynamoTable, LeaseMode, LeaseSettings, LeasedLimiter,
    Limit, OnUnavailable, SystemClock,
};

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, table, tasks, per_s, seconds, per_minute, burst, accounting] = args.as_slice()
    else {
        panic!("see the first lines of this program")
    };
    let number = |text: &String| -> u64 { text.parse().unwrap() };
    let accounting =
        if accounting == "at-settle" { Accounting::AtSettle } else { Accounting::AtLease };
    let mode = LeaseMode::Strict(accounting);
    let table = DynamoTable::new(&sluicegate_local::client::dynamodb(endpoint), table);
    let settings = LeaseSettings { mode, ..LeaseSettings::default() };
    let limiter = LeasedLimiter::leased_with(CompositeStore::on(table), SystemClock, settings)
        .deadline(Duration::from_secs(20))
        .on_unavailable(OnUnavailable::Deny);
    let limits = [Limit::per_minute("rps", number(per_minute)).burst(number(burst))];
    let call = limiter.acquire("shared", "r").consume("rps", 1).limits(limits).no_cascade();
    let call = Arc::new(call.prepare().await.unwrap());
    let start = Instant::now();
    let end = start + Duration::from_secs(number(seconds));
    let every = Duration::from_secs(number(tasks)).div_f64(number(per_s) as f64);
    let mut work = tokio::task::JoinSet::new();
    for task in 0..u32::try_from(number(tasks)).unwrap() {
        let call = call.clone();
        work.spawn(async move {
            let mut next = start + every.mul_f64(f64::from(task) / 16.0);
            // A machine that cannot keep up asks less, not longer.
            while next < end && Instant::now() < end {
                tokio::time::sleep_until(next.into()).await;
                next += every;
                match call.acquire().await {
                    Ok(_) => std::io::stdout().write_all(b"a").unwrap(),
                    Err(AcquireError::LimitExceeded(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                // Standard output keeps what has no line end.
                std::io::stdout().flush().unwrap();
            }
        });
    }
    while let Some(result) = work.join_next().await {
        result.unwrap();
    }
    let report = limiter.shutdown(Duration::from_secs(20)).await;
    assert!(report.unsettled.is_empty(), "{report:?}");
    std::io::stdout().write_all(b".").unwrap();
}
