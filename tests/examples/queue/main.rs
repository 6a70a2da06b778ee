//! Measures requests that share the writes of one bucket: their wait, their cost, and that none is
//! delayed by the others.
//!
//! `cargo run --profile bench -p sluicegate-tests --example queue [-- PART ...]`; the parts are
//! `latency`, `processes`, `corrections` and `fairness`, all of them unless named. The engine is
//! the embedded one in this process, over HTTP, behind a proxy that delays each request. Times are
//! ratios within one run. A run fails with a line for each missed aim.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::neg_cmp_op_on_partial_ord,
    reason = "a tool by hand"
)]

use std::process::ExitCode;

use self::measured::Aims;

mod bed;
mod corrections;
mod fairness;
mod latency;
#[path = "../measured/mod.rs"]
mod measured;
mod processes;

#[tokio::main]
async fn main() -> ExitCode {
    let parts: Vec<String> = std::env::args().skip(1).collect();
    let is_asked = |part: &str| parts.is_empty() || parts.iter().any(|asked| asked == part);
    let mut aims = Aims::default();
    if is_asked("latency") {
        latency::measure(&mut aims).await;
    }
    if is_asked("processes") {
        processes::measure(&mut aims).await;
    }
    if is_asked("corrections") {
        corrections::measure(&mut aims).await;
    }
    if is_asked("fairness") {
        fairness::measure(&mut aims).await;
    }
    aims.conclude()
}
