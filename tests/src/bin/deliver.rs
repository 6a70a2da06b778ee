//! Delivers one event to the processor and dies at a given write.
//!
//! `deliver ENDPOINT TABLE EVENT-FILE ABORT-AFTER`: the process aborts (no unwinding, no flushing)
//! as soon as DynamoDB has answered that many requests, before the handler learns of the last one.
//! Alerts are on.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool of one test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use sluicegate_processor::{Processor, Settings, StreamEvent, Switch};
use tokio::time::Instant;

#[derive(Debug)]
struct AbortAfter {
    writes: u64,
    seen: AtomicU64,
}

impl Intercept for AbortAfter {
    fn name(&self) -> &'static str {
        "AbortAfter"
    }

    fn read_after_transmit(
        &self,
        _: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), aws_sdk_dynamodb::error::BoxError> {
        if self.seen.fetch_add(1, Ordering::SeqCst) + 1 == self.writes {
            std::process::abort();
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, table, file, abort_after] = args.as_slice() else {
        panic!("usage: deliver ENDPOINT TABLE EVENT-FILE ABORT-AFTER");
    };
    let abort = AbortAfter { writes: abort_after.parse().unwrap(), seen: AtomicU64::new(0) };
    let config = sluicegate_local::client::dynamodb_config(endpoint).interceptor(abort).build();
    let client = aws_sdk_dynamodb::Client::from_conf(config);
    let event: StreamEvent = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let settings = Settings { alerts: Switch::On, ..Settings::new(table) };
    let processor = Processor::new(client, settings);
    let deadline = Instant::now() + Duration::from_secs(60);
    let outcome = processor.handle(&event.records, deadline).await;
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    println!("{}", outcome.report.window_updates);
}
