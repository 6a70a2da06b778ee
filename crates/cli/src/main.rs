//! The `sluicegate` command: the tasks around the library, on a laptop or against a table.
//!
//! Results go to standard output; everything else (progress, quarantined records, errors) to
//! standard error, so that a script reads one and a person the other.
mod acquire;
mod adjust;
mod alerts;
mod amount;
mod bucket;
mod budget;
mod confirm;
mod connection;
mod demo;
mod entity;
mod error;
mod feed;
mod limits;
mod local;
mod metering;
mod migrate;
mod options;
mod output;
mod pending;
mod process;
mod quarantine;
mod readable;
mod replay;
mod serve;
mod shell;
mod status;
mod table;
mod usage;
mod whose;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use error::{CliError, say};
use options::Options;

/// `serve` answers a quarter more requests with it than with the allocator of glibc.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rate limiting and usage metering on DynamoDB.
#[derive(Parser)]
#[command(name = "sluicegate", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Acquire(acquire::Args),
    Adjust(adjust::Args),
    #[command(subcommand)]
    Alerts(alerts::Args),
    Budget(budget::Args),
    Completions(shell::Completions),
    Demo(demo::Args),
    #[command(subcommand)]
    Entity(entity::Args),
    #[command(subcommand)]
    Limits(limits::Args),
    Local(local::Args),
    Man(shell::Man),
    Migrate(migrate::Args),
    Process(process::Args),
    #[command(subcommand)]
    Quarantine(quarantine::Args),
    Replay(replay::Args),
    Serve(serve::Args),
    Status(status::Args),
    #[command(subcommand)]
    Table(table::Args),
    Usage(usage::Args),
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
    let result = runtime.block_on(dispatch(cli.command, &cli.options));
    result.unwrap_or_else(|error| {
        match error {
            // The reader of the output has closed it.
            CliError::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                ExitCode::SUCCESS
            }
            error => {
                say(&format!("error: {}", error.line(cli.options.endpoint().as_deref())));
                error.exit_code()
            }
        }
    })
}

async fn dispatch(command: Command, options: &Options) -> Result<ExitCode, CliError> {
    match command {
        Command::Acquire(args) => acquire::run(args, options).await,
        Command::Adjust(args) => adjust::run(args, options).await,
        Command::Alerts(args) => alerts::run(args, options).await,
        Command::Budget(args) => budget::run(args, options).await,
        Command::Completions(args) => shell::completions(&args, Cli::command()),
        Command::Demo(args) => demo::run(args).await,
        Command::Entity(args) => entity::run(args, options).await,
        Command::Limits(args) => limits::run(args, options).await,
        Command::Local(args) => local::run(args, options).await,
        Command::Man(args) => shell::man(&args, Cli::command()),
        Command::Migrate(args) => migrate::run(args, options).await,
        Command::Process(args) => process::run(args, options).await,
        Command::Quarantine(args) => quarantine::run(args, options).await,
        Command::Replay(args) => replay::run(args, options).await,
        Command::Serve(args) => serve::run(args, options).await,
        Command::Status(args) => status::run(args, options).await,
        Command::Table(args) => table::run(args, options).await,
        Command::Usage(args) => usage::run(args, options).await,
    }
}
