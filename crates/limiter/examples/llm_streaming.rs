//! Limits a language model's answer while it streams: its cost is known only at its end.
//!
//! ```sh
//! cargo run -p sluicegate --example llm_streaming
//! ```
//!
//! Before: acquire an estimate. While tokens arrive: once they pass the estimate, take more in
//! batches, a write for each batch instead of one for each token. At the end: correct to the exact
//! number. If it fails before the first token: give everything back.
#![allow(clippy::print_stdout, reason = "an example talks to the terminal")]

use std::time::Duration;

use sluicegate::types::BucketId;
use sluicegate::{
    AdjustError, CompositeStore, EntityId, Limit, Limiter, MemoryTable, Permit, Resource,
};
use tokio::sync::mpsc;

type BoxError = Box<dyn std::error::Error>;

const MODEL: &str = "gpt-4";
/// Tokens taken at once when the estimate is passed. With smaller batches, other requests learn of
/// it sooner; with larger ones, there are fewer writes.
const BATCH_TOKENS: i64 = 50;

/// A message of a model: so many tokens, or a failure.
#[derive(Debug, Clone, Copy)]
enum Chunk {
    Tokens(i64),
    Broken,
}

/// The tokens taken for an answer, and the tokens received so far.
struct Metered {
    lease: Permit,
    taken: i64,
    seen: i64,
}

impl Metered {
    /// Counts received tokens, and takes the next batch when they pass the tokens taken.
    async fn arrived(&mut self, tokens: i64) -> Result<(), AdjustError> {
        self.seen += tokens;
        let short = self.seen - self.taken;
        if short > 0 {
            let batches = (short + BATCH_TOKENS - 1) / BATCH_TOKENS;
            self.take(batches * BATCH_TOKENS).await?;
        }
        Ok(())
    }

    /// The answer has ended, completely or not: the tokens received are its cost.
    async fn settle(mut self) -> Result<i64, AdjustError> {
        self.take(self.seen - self.taken).await?;
        Ok(self.seen)
    }

    /// Takes more tokens. A correction is never refused, as the model is already working. The next
    /// requests wait out a balance below zero.
    async fn take(&mut self, tokens: i64) -> Result<(), AdjustError> {
        self.lease.adjust("tpm", tokens).await?;
        self.taken += tokens;
        println!("    adjusted by {tokens:+}: {} seen, {} taken", self.seen, self.taken);
        Ok(())
    }
}

async fn answer(
    limiter: &Limiter,
    user: &str,
    prompt: &str,
    script: &'static [Chunk],
) -> Result<(), BoxError> {
    // Four characters are about a token, and an answer is about twice its prompt.
    let estimate = i64::try_from(prompt.len().div_ceil(4) * 3)?;
    println!("{user} asks {prompt:?}: {estimate} tokens estimated");
    let limits = [Limit::per_minute("rpm", 10), Limit::per_minute("tpm", 1_000)];
    let request = limiter.acquire(user, MODEL).consume("rpm", 1).consume("tpm", estimate);
    let lease = request.limits(limits).await?;
    let mut metered = Metered { lease, taken: estimate, seen: 0 };

    let mut chunks = stream(script);
    while let Some(chunk) = chunks.recv().await {
        match chunk {
            Chunk::Tokens(tokens) => metered.arrived(tokens).await?,
            // No token came: the user pays nothing, not even the request.
            Chunk::Broken if metered.seen == 0 => {
                metered.lease.release().await?;
                println!("    broke at once: given back");
                return Ok(());
            }
            Chunk::Broken => {
                println!("    broke in the middle: what came is paid for");
                break;
            }
        }
    }
    let used = metered.settle().await?;
    println!("    settled at {used} tokens");
    Ok(())
}

/// A model that sends the messages of a script.
fn stream(script: &'static [Chunk]) -> mpsc::Receiver<Chunk> {
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(async move {
        for chunk in script {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if sender.send(*chunk).await.is_err() {
                return;
            }
        }
    });
    receiver
}

type InMemory = CompositeStore<MemoryTable>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let limiter = Limiter::new(CompositeStore::with_table(MemoryTable::new()));
    let words = "Tell me about rate limits, and be brief about it.";
    answer(&limiter, "alice", words, &[Chunk::Tokens(12); 15]).await?;
    answer(&limiter, "alice", words, &[Chunk::Tokens(9), Chunk::Tokens(4)]).await?;
    answer(&limiter, "alice", words, &[Chunk::Broken]).await?;
    answer(&limiter, "alice", words, &[Chunk::Tokens(20), Chunk::Tokens(20), Chunk::Broken])
        .await?;

    let bucket = BucketId { entity: EntityId::new("alice")?, resource: Resource::new(MODEL)? };
    let store: &InMemory = limiter.store().ok_or("the store is in memory")?;
    let image = store.table().bucket(&bucket).ok_or("there is no bucket")?;
    for (limit, bucket) in &image.limits {
        println!("alice consumed {} millitokens of {limit}", bucket.consumed.get());
    }
    Ok(())
}
