//! A team's budget above those of its users: an acquire takes from both buckets, or from neither.
//! A refusal names the entity whose limit is short.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use sluicegate::{AcquireError, Limit, LimitSet, Limiter, MemoryStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::new(MemoryStore::new());
    let user_limits = LimitSet::new([Limit::per_minute("tpm", 600)])?;
    let team_limits = LimitSet::new([Limit::per_minute("tpm", 1_000)])?;
    for (user, tokens) in [("alice", 500), ("bob", 400), ("bob", 150), ("alice", 200)] {
        let request = limiter.acquire(user, "gpt-4").consume("tpm", tokens).limits(&user_limits);
        match request.cascade_to("team").parent_limits(&team_limits).await {
            Ok(permit) => {
                println!("{user} gets {tokens}");
                for left in permit.remaining() {
                    println!("  {} has {} left", left.entity, left.limit.show(left.available));
                }
            }
            Err(AcquireError::LimitExceeded(refused)) => println!("{user}: {refused}"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
