//! Tests of a program that uses a limiter: a store in memory, and a clock that the tests move.
//! `cargo test -p sluicegate --example in_tests` runs them, without an engine and without waiting.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use sluicegate::{AcquireError, Limit, Limiter, MemoryStore};

async fn greet(limiter: &Limiter, user: &str) -> Result<String, AcquireError> {
    let limits = [Limit::per_minute("rpm", 2)];
    limiter.acquire(user, "greetings").consume("rpm", 1).limits(limits).await?;
    Ok(format!("hello, {user}"))
}

#[tokio::main]
async fn main() -> Result<(), AcquireError> {
    println!("{}", greet(&Limiter::new(MemoryStore::new()), "alice").await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate::TestClock;

    use super::*;

    #[tokio::test]
    async fn greet_refuses_the_third_until_half_a_minute_later() -> Result<(), AcquireError> {
        let clock = TestClock::default();
        let limiter = Limiter::builder(MemoryStore::new()).clock(clock.clone()).build();
        greet(&limiter, "alice").await?;
        greet(&limiter, "alice").await?;

        let refused = greet(&limiter, "alice").await;
        let Err(AcquireError::LimitExceeded(refused)) = refused else { panic!("{refused:?}") };
        assert_eq!(refused.retry_after, Some(Duration::from_secs(30)));

        clock.advance(Duration::from_secs(30));
        assert_eq!(greet(&limiter, "alice").await?, "hello, alice");
        Ok(())
    }
}
