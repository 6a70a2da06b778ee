//! One of several processes that rush for the tokens of one bucket of a Redis.
//!
//! `rush URL ENTITY TASKS OPERATIONS`: prints "ready" once it is connected, waits for a line, and
//! then every task asks that often for one of 40 tokens that never refill. The last line holds the
//! numbers of grants and refusals; any other result ends it.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool of one test")]

use std::time::Duration;

use sluicegate::redis::RedisStore;
use sluicegate::{AcquireError, Limit, Limiter, OnUnavailable};
use tokio::io::{AsyncBufReadExt as _, BufReader};

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, entity, tasks, operations] = args.as_slice() else {
        panic!("usage: rush URL ENTITY TASKS OPERATIONS");
    };
    let store = RedisStore::new(url.as_str()).unwrap();
    let limiter = Limiter::builder(store)
        .deadline(Duration::from_secs(20))
        .on_unavailable(OnUnavailable::Deny)
        .build();
    limiter.peek("nobody", "r").await.unwrap();
    println!("ready");
    BufReader::new(tokio::io::stdin()).read_line(&mut String::new()).await.unwrap();
    let operations: u32 = operations.parse().unwrap();
    let mut work = tokio::task::JoinSet::new();
    for _ in 0..tasks.parse::<u32>().unwrap() {
        work.spawn(rush(limiter.clone(), entity.clone(), operations));
    }
    let mut granted = 0;
    let mut refused = 0;
    while let Some(counts) = work.join_next().await {
        let counts = counts.unwrap();
        granted += counts.0;
        refused += counts.1;
    }
    println!("{granted} {refused}");
}

async fn rush(limiter: Limiter, entity: String, operations: u32) -> (u32, u32) {
    let (mut granted, mut refused) = (0, 0);
    for _ in 0..operations {
        let request = limiter.acquire(&entity, "r").consume("l", 1).limits([Limit::quota("l", 40)]);
        match request.await {
            Ok(_) => granted += 1,
            Err(AcquireError::LimitExceeded(_)) => refused += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    (granted, refused)
}
