//! An answer that streams: takes an estimate first, more tokens in steps while they arrive, and
//! corrects to the exact number at the end. An answer that fails at once costs nothing.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use futures_util::stream::{self, Stream, StreamExt as _};
use sluicegate::error::BoxError;
use sluicegate::{Limit, Limiter, MemoryStore};

/// With smaller steps, other requests learn of the tokens sooner; larger ones need fewer writes.
const STEP: i64 = 50;

/// A model that sends so many tokens in each chunk, or fails.
fn model(chunks: &[Option<i64>]) -> impl Stream<Item = Result<i64, &'static str>> {
    stream::iter(chunks).map(|chunk| chunk.ok_or("the model failed"))
}

async fn answer(limiter: &Limiter, chunks: &[Option<i64>]) -> Result<(), BoxError> {
    let (estimate, limits) = (60, [Limit::per_minute("tpm", 1_000)]);
    let request = limiter.acquire("user-123", "gpt-4").consume("tpm", estimate).limits(limits);
    let permit = request.await?;
    let (mut taken, mut received) = (estimate, 0);
    let mut answer = model(chunks);
    while let Some(Ok(tokens)) = answer.next().await {
        received += tokens;
        while taken < received {
            permit.adjust("tpm", STEP).await?; // never refused: a balance may go below zero
            taken += STEP;
            println!("  received {received}, took {taken}");
        }
    }
    permit.adjust("tpm", received - taken).await?;
    for left in permit.remaining() {
        println!("the answer cost {received} tokens; {} are left", left.limit.show(left.available));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let limiter = Limiter::new(MemoryStore::new());
    answer(&limiter, &[Some(25); 7]).await?;
    answer(&limiter, &[Some(25), None]).await?;
    answer(&limiter, &[None]).await
}
