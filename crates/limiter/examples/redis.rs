//! Two gateways that share limits on Redis.
//! Needs REDIS_URL: docs/examples.md starts a server.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use sluicegate::redis::RedisStore;
use sluicegate::{AcquireError, Limit, Limiter};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").map_err(
        |_| "set REDIS_URL, such as redis://127.0.0.1/: docs/examples.md starts a server",
    )?;
    let gateways = [
        ("first", Limiter::new(RedisStore::new(url.as_str())?)),
        ("second", Limiter::new(RedisStore::new(url.as_str())?)),
    ];
    for (name, limiter) in gateways.iter().cycle().take(4) {
        let limits = [Limit::per_minute("rpm", 3)];
        match limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(limits).await {
            Ok(_) => println!("{name} gateway: granted"),
            Err(AcquireError::LimitExceeded(refused)) => println!("{name} gateway: {refused}"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
