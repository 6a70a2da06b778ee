//! Shadow mode: tries limits out on real traffic. The limiter decides and counts, and refuses
//! nothing.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use sluicegate::{Limit, LimitSet, Limiter, MemoryStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = LimitSet::new([Limit::per_minute("rpm", 3)])?;
    let limiter = Limiter::builder(MemoryStore::new()).default_limits(limits).shadow().build();
    for request in 1..=5 {
        let permit = limiter.acquire("user-123", "gpt-4").consume("rpm", 1).await?;
        match permit.shadowed() {
            None => println!("request {request}: granted"),
            Some(refusal) => println!("request {request}: granted in spite of: {refusal}"),
        }
    }
    println!("limits would have refused {}", limiter.counters().shadowed.get());
    Ok(())
}
