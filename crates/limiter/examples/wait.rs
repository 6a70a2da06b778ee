//! A batch worker that waits for tokens: ten documents, four a second.
//! A bucket starts full, so the first four need not wait.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use std::time::{Duration, Instant};

use sluicegate::{Limit, Limiter, MemoryStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::new(MemoryStore::new());
    let start = Instant::now();
    for document in 1..=10 {
        limiter
            .acquire("indexer", "embeddings")
            .consume("rps", 1)
            .limits([Limit::per_second("rps", 4)])
            .wait_up_to(Duration::from_secs(5))
            .await?;
        println!("document {document} starts after {:.2} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}
