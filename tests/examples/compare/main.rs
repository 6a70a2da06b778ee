//! The parts of `cargo xtask compare` that need this workspace: the servers, and this project as a
//! contestant, each a process of its own.
//!
//! `compare servers` serves DynamoDB and Redis; `compare dynamodb|leased|redis|script URL` and
//! `compare prepared` are contestants, by the protocol of `protocol.rs`.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a tool of one task, which reads its output"
)]

use std::sync::Arc;

use tokio::runtime::Runtime;

use self::contestant::{Contestant, carry_out};
use self::protocol::serve;

mod contestant;
mod ours;
mod prepared;
mod protocol;
mod script;
mod servers;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let runtime = Runtime::new().unwrap();
    match arguments[..] {
        ["servers"] => runtime.block_on(servers::run()),
        ["dynamodb", url] => compete(&runtime, runtime.block_on(ours::dynamodb(url))),
        ["leased", url] => compete(&runtime, runtime.block_on(ours::leased(url))),
        ["redis", url] => compete(&runtime, ours::redis(url)),
        ["script", url] => compete(&runtime, runtime.block_on(script::Script::connect(url))),
        ["prepared"] => prepared::compete(&runtime),
        _ => panic!("usage: compare servers|prepared, or compare dynamodb|leased|redis|script URL"),
    }
    // Background tasks of a leasing limiter are still running.
    runtime.shutdown_background();
}

fn compete(runtime: &Runtime, contestant: impl Contestant) {
    let contestant = Arc::new(contestant);
    serve(VERSION, |order| runtime.block_on(carry_out(&contestant, order)));
}
