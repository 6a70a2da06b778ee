//! An empty table on the embedded engine, for a command that reads its address from the
//! environment.
//!
//! `engine COMMAND ARG...` runs the command with `TABLE_NAME`, `AWS_ENDPOINT_URL` and credentials
//! that the engine takes, prints every usage window that appears or changes meanwhile, and ends
//! with the command. This is how `cargo lambda watch` gets a table in the README.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a tool by hand")]

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};
use std::time::Duration;

use sluicegate_core::UsageWindow;
use sluicegate_local::client::REGION;
use sluicegate_local::{EmbeddedEngine, Storage, client, table};
use sluicegate_testkit::usage::scan;

const TABLE: &str = "sluicegate-limits";
/// Fast enough for a person.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(program) = args.next() else { panic!("usage: engine COMMAND ARG...") };
    let engine = EmbeddedEngine::start(Storage::Memory).await.unwrap();
    let client = client::dynamodb(&engine.endpoint_url());
    table::create_table(&client, TABLE).await.unwrap();
    println!("table {TABLE} at {}", engine.endpoint_url());

    let mut command = Command::new(program);
    // `cargo run` describes this package in variables; a cargo below would rebuild the crates that
    // watch them, and so would the next one without them.
    let described =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars().filter(|(name, _)| described(name)) {
        command.env_remove(name);
    }
    let mut command = command
        .args(args)
        .env("TABLE_NAME", TABLE)
        .env("AWS_ENDPOINT_URL", engine.endpoint_url())
        .env("AWS_REGION", REGION)
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .spawn()
        .unwrap();
    let mut known = BTreeSet::new();
    loop {
        let ended = command.try_wait().unwrap();
        let found = windows(&client).await;
        for window in found.difference(&known) {
            println!("{window}");
        }
        known = found;
        if let Some(status) = ended {
            return if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Every usage window of the table as a line.
async fn windows(client: &aws_sdk_dynamodb::Client) -> BTreeSet<String> {
    let items = scan(client, TABLE).await.into_iter();
    let windows = items.filter_map(|item| UsageWindow::from_item(&item.into()).unwrap());
    windows.map(|window| line(&window)).collect()
}

fn line(usage: &UsageWindow) -> String {
    let consumed: Vec<String> =
        usage.consumed_milli.iter().map(|(limit, milli)| format!("{limit}={milli}")).collect();
    let UsageWindow { entity, resource, window, events, .. } = usage;
    let (kind, start, consumed) = (window.kind(), window.start_text(), consumed.join(" "));
    format!("window {entity} {resource} {kind} {start} millitokens: {consumed}, events: {events}")
}
