//! Measures the bytes per key of a leased limiter, by the resident memory of the process.
//!
//! `cargo run --profile bench -p sluicegate --example leased_memory`: a million keys, each asked
//! twice, so that tokens are leased ahead. The table answers and remembers nothing, and the store
//! behind remembers one bucket, so that only the keys of the leases are measured.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example that reports")]

use std::time::Duration;

use sluicegate::settings::StoreSettings;
use sluicegate::store::{
    Consistency, ReadItems, Table, TableError, TransactError, WriteError, Written,
};
use sluicegate::types::BucketId;
use sluicegate::{CompositeStore, LeaseSettings, Limit, Limiter};
use sluicegate_core::WritePlan;
use sluicegate_core::keys::ItemKey;

const KEYS: usize = 1_000_000;
const AT_ONCE: usize = 10_000;

/// Grants every write and forgets it.
#[derive(Debug)]
struct Forgetful;

impl Table for Forgetful {
    async fn write(&self, _: &BucketId, _: &WritePlan) -> Result<Written, WriteError> {
        Ok(Written { image: None, write_units: 1.0 })
    }

    async fn transact_write(
        &self,
        _: &[(BucketId, WritePlan)],
        _mark: Option<&sluicegate::store::Mark>,
        _: &str,
    ) -> Result<f64, TransactError> {
        Ok(4.0)
    }

    async fn read(&self, keys: &[ItemKey], _: Consistency) -> Result<ReadItems, TableError> {
        Ok(ReadItems { items: vec![None; keys.len()], read_units: 0.5 })
    }
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kilobytes = line.split_whitespace().nth(1).unwrap();
    kilobytes.parse::<usize>().unwrap() * 1_024
}

/// Asks for every key; returns the added bytes per key.
async fn bytes_per_key(limits: usize, max_age: Duration, pause: Duration) -> usize {
    let store = StoreSettings { buckets_max: 1, ..StoreSettings::default() };
    let store = CompositeStore::with_settings(Forgetful, store);
    let settings = LeaseSettings { max_age, max_keys: KEYS + AT_ONCE, ..LeaseSettings::default() };
    let limiter = Limiter::builder(store).leasing(settings).build();
    let names = &["rpm", "tpm"][..limits];
    let request = names
        .iter()
        .fold(limiter.acquire("user", "gpt-4"), |request, name| request.consume(*name, 1));
    let limits = names.iter().map(|name| Limit::per_minute(*name, 1_000));
    let call = request.limits(limits).no_cascade().prepare().await.unwrap();
    let ask = async |from: usize| {
        for n in from..from + AT_ONCE {
            let entity = format!("user-{n:09}");
            for _ in 0..2 {
                drop(call.acquire_for(&entity).await.unwrap());
            }
        }
        tokio::time::sleep(pause).await;
    };
    ask(KEYS).await;
    let before = resident_bytes();
    for from in (0..KEYS).step_by(AT_ONCE) {
        ask(from).await;
    }
    let after = resident_bytes();
    limiter.flush(Duration::from_secs(30)).await;
    (after - before) / KEYS
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Some(limits) = std::env::args().nth(1) {
        let limits = limits.parse().unwrap();
        let held = bytes_per_key(limits, Duration::from_secs(36_000), Duration::ZERO).await;
        println!("{held} bytes for a key of which tokens are held, of limits: {limits}");
        return;
    }
    let idle = bytes_per_key(1, Duration::from_millis(40), Duration::from_millis(150)).await;
    println!("{idle} bytes for a key of which nothing is held any more");
    let program = std::env::current_exe().unwrap();
    for limits in ["1", "2"] {
        // In a process of its own: freed memory stays resident.
        assert!(std::process::Command::new(&program).arg(limits).status().unwrap().success());
    }
}
