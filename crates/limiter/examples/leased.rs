//! A limiter that leases: it takes tokens ahead of need, and a prepared call grants from them by a
//! few atomic operations.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use std::time::{Duration, Instant};

use sluicegate::{LeaseSettings, Limit, Limiter, MemoryStore};

const REQUESTS: u32 = 100_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = MemoryStore::new();
    let limiter = Limiter::builder(store).leasing(LeaseSettings::default()).build();
    let limits = [Limit::per_minute("rpm", 10_000_000)];
    let request = limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(limits);
    let call = request.no_cascade().prepare().await?;

    let start = Instant::now();
    for _ in 0..REQUESTS {
        drop(call.acquire().await?); // dropping a permit keeps its tokens consumed
    }
    println!("{REQUESTS} requests, {} ns each", (start.elapsed() / REQUESTS).as_nanos());

    let report = limiter.shutdown(Duration::from_secs(5)).await; // gives back unused tokens
    println!("settled {} bucket, failed to settle {}", report.settled, report.unsettled.len());
    for limit in limiter.peek("user-123", "gpt-4").await? {
        println!("{} tokens of {} were consumed", limit.consumed.get() / 1_000, limit.limit);
    }
    Ok(())
}
