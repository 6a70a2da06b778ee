//! A budget in dollars: the most that a call may cost is taken before it, and the cost is known after
//! it. Requests, input tokens, output tokens and money are four limits, and each correction is one write.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use sluicegate::error::BoxError;
use sluicegate::{AcquireError, Clock as _, Limit, LimitSet, Limiter, MemoryStore, SystemClock};
use sluicegate_prices::{PriceBook, Usage, UsageReader};

const MODEL: &str = "gpt-4o-mini";

const PRICES: &str = r#"{"currency": "USD", "models": {"gpt-4o-mini": [
    {"from": "2026-01-01", "input": "0.15", "output": "0.60", "cached_input": "0.075"}
]}}"#;

/// The stream of a provider, in chunks as they arrive.
fn complete() -> impl Iterator<Item = &'static [u8]> {
    include_bytes!("../tests/samples/openai-chat.sse").chunks(100)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let book = PriceBook::from_json(PRICES)?;
    let limits = ["rpm=600/min", "input=2000000/min", "output=200000/min", "usd=0.001/month"];
    let limits: Result<Vec<Limit>, _> = limits.into_iter().map(str::parse).collect();
    let limits = LimitSet::new(limits?)?;
    let limiter = Limiter::builder(MemoryStore::new()).build();
    loop {
        // The tokens of the prompt, and the most that the answer may have.
        let most = Usage { input: 1_117, output: 1_000, ..Usage::default() };
        let now = SystemClock.now();
        let estimate = book.amounts(MODEL, &most, now)?;
        let request = limiter.acquire("team-7", MODEL).consume_all(&estimate).limits(&limits);
        let permit = match request.await {
            Ok(permit) => permit,
            Err(AcquireError::LimitExceeded(refused)) => {
                for limit in refused.violations() {
                    println!("refused: {limit}");
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let mut answer = UsageReader::default();
        complete().for_each(|chunk| answer.push(chunk));
        // Without the usage of the whole answer, the estimate stays taken.
        let usage = answer.usage().filter(|_| answer.is_complete()).unwrap_or(most);
        permit.correct_to(&book.amounts(MODEL, &usage, now)?).await?;
        let cost = book.cost(MODEL, &usage, now)?;
        for left in permit.remaining().iter().filter(|left| left.limit.as_str() == "usd") {
            println!("it cost {cost}, {} are left", left.limit.show(left.available));
        }
    }
}
