//! The `sluicegate` command: what a user does around the library, on a laptop or against a table.
//!
//! Results go to standard output; everything else (progress, quarantined records, errors) to
//! standard error, so that a script reads one and a person the other.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool prints")]

mod error;
mod replay;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Rate limiting and usage metering on DynamoDB.
#[derive(Parser)]
#[command(name = "sluicegate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Replay(replay::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = match cli.command {
        Command::Replay(args) => runtime.block_on(replay::run(args)),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        error.exit_code()
    })
}
