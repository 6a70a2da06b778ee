//! One of several processes that acquire from one bucket.
//!
//! `acquirer ENDPOINT TABLE TASKS OPERATIONS`: every task acquires one token of `rps` that often
//! and gives every eighth back. The last line holds the results, in the order of [`Totals`].
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool of one test")]

use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::{AcquireError, CompositeStore, Limit, Limiter, OnUnavailable};

#[derive(Debug, Default)]
struct Totals {
    granted: u64,
    returned: u64,
    refused: u64,
    contended: u64,
    errors: u64,
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, table, tasks, operations] = args.as_slice() else {
        panic!("usage: acquirer ENDPOINT TABLE TASKS OPERATIONS");
    };
    let table = DynamoTable::new(&sluicegate_local::client::dynamodb(endpoint), table);
    let limiter = Limiter::builder(CompositeStore::with_table(table))
        .deadline(Duration::from_secs(20))
        .on_unavailable(OnUnavailable::Deny)
        .build();
    let operations: u64 = operations.parse().unwrap();
    let mut work = tokio::task::JoinSet::new();
    for _ in 0..tasks.parse::<u32>().unwrap() {
        work.spawn(task(limiter.clone(), operations));
    }
    let mut sum = Totals::default();
    while let Some(totals) = work.join_next().await {
        let Totals { granted, returned, refused, contended, errors } = totals.unwrap();
        sum.granted += granted;
        sum.returned += returned;
        sum.refused += refused;
        sum.contended += contended;
        sum.errors += errors;
    }
    let Totals { granted, returned, refused, contended, errors } = sum;
    println!("{granted} {returned} {refused} {contended} {errors}");
}

async fn task(limiter: Limiter, operations: u64) -> Totals {
    let mut totals = Totals::default();
    for n in 1..=operations {
        let limits = [Limit::per_second("rps", 40)];
        let request = limiter.acquire("shared", "r").consume("rps", 1).limits(limits).no_cascade();
        match request.await {
            Ok(permit) => {
                totals.granted += 1;
                if n % 8 == 0 {
                    match permit.release().await {
                        Ok(_) => totals.returned += 1,
                        Err(_) => totals.errors += 1,
                    }
                }
            }
            Err(AcquireError::LimitExceeded(exceeded)) => {
                totals.refused += 1;
                tokio::time::sleep(exceeded.retry_after.unwrap_or_default()).await;
            }
            Err(AcquireError::Contended { .. }) => totals.contended += 1,
            Err(_) => totals.errors += 1,
        }
    }
    totals
}
