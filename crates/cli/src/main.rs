//! The `sluicegate` command: what a user does around the library, on a laptop or against a table.
//!
//! Results go to standard output; everything else (progress, quarantined records, errors) to
//! standard error, so that a script reads one and a person the other.
mod error;
mod replay;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::{CliError, say};

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
            say(&format!("error: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = match cli.command {
        Command::Replay(args) => runtime.block_on(replay::run(args)),
    };
    result.unwrap_or_else(|error| {
        match error {
            // Whoever read the output has seen enough.
            CliError::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                ExitCode::SUCCESS
            }
            error => {
                say(&format!("error: {error}"));
                error.exit_code()
            }
        }
    })
}
