//! `cargo xtask soak`: what takes longer than a change can wait for.
//!
//! The exactness suite over many more seeds than `cargo test` has time for, optimised. Run before
//! an issue is resolved; a failure names its seed, and `--seeds` runs that one alone.

use anyhow::Result;

use crate::process;

/// Runs the long tests.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seeds of generated histories, as FROM..TO (TO excluded).
    #[arg(long, default_value = "100..140")]
    seeds: String,
    /// Records in each history.
    #[arg(long, default_value_t = 5_000)]
    records: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut cargo = process::cargo();
    cargo.args(["test", "--locked", "--package", "sluicegate-tests", "--test", "e2e"]);
    cargo.args(["exactness", "--", "--nocapture"]);
    cargo.env("SLUICEGATE_TEST_SEEDS", &args.seeds);
    cargo.env("SLUICEGATE_TEST_RECORDS", args.records.to_string());
    // Hours of SQLite and JSON: worth a build of its own, but not fat LTO.
    for (name, value) in [("OPT_LEVEL", "2"), ("DEBUG_ASSERTIONS", "true")] {
        cargo.env(format!("CARGO_PROFILE_DEV_{name}"), value);
    }
    cargo.env("CARGO_TARGET_DIR", crate::workspace::target_dir().join("soak"));
    process::run(&mut cargo)
}
