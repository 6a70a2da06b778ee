//! The scope of a comparison: its arguments, the stores, and the folder of the peers.

use clap::ValueEnum;

use crate::workspace;

/// Measures this project beside other rate limiters, and observes each of them at its limits.
///
/// Installs the peers from PyPI, npm and crates.io into `target/peers`; only that needs a network.
/// Everything listens on 127.0.0.1. A run takes eight minutes after the builds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rewrites the generated part of docs/comparison.md.
    #[arg(long, conflicts_with_all = ["json", "only"])]
    pub(super) write: bool,
    /// Prints the results as JSON instead of Markdown.
    #[arg(long)]
    pub(super) json: bool,
    /// Compares on these stores only.
    #[arg(long)]
    pub(super) only: Vec<Store>,
    /// The number of slices of each contestant; the medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) slices: u32,
    /// Milliseconds of a slice, after a lead-in that does not count.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..))]
    pub(super) millis: u32,
    /// The number of tasks that ask at once, beside one task alone.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..))]
    pub(super) tasks: u32,
    /// The number of keys that are asked for in turn, beside one key alone.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..))]
    pub(super) keys: u32,
}

/// The place of the balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    /// The embedded DynamoDB engine, over HTTP.
    Dynamodb,
    /// A Redis server.
    Redis,
    /// The memory of the contestant's process.
    Process,
}

impl Store {
    /// The name, as on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().unwrap_or_default().get_name().to_owned()
    }

    /// The same, behind the proxy that counts and loses requests.
    pub(super) fn faulty(self) -> &'static str {
        match self {
            Self::Dynamodb => "dynamodb_metered",
            Self::Redis => "redis_lossy",
            Self::Process => "process",
        }
    }
}

/// The folder of the peers' installs, builds and logs.
pub(super) fn folder() -> std::path::PathBuf {
    workspace::root().join("target").join("peers")
}
