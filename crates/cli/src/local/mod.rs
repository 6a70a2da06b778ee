//! `sluicegate local`: the whole loop in one process, for development.
//!
//! A write that was acknowledged to a producer is in the file, and every record in the file is
//! counted once, however the process ends: see [`LocalLoop`].

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use sluicegate_local::client::REGION;
use sluicegate_local::{Error, LocalLoop, LoopOptions, Storage};
use sluicegate_processor::chain;
use tokio::sync::oneshot;

use crate::connection::check_table_name;
use crate::error::{CliError, say};
use crate::feed::{Feed, interrupted, show_warnings};
use crate::metering::Metering;
use crate::options::Options;

/// Run a DynamoDB on this machine, with the table and the metering of its stream.
///
/// The engine is a part of this process and listens on 127.0.0.1 only. Every acquire on it shows up
/// in the usage windows within a second. Prints the variables that point producers, and the other
/// commands, to it; Ctrl-C counts the remaining records and stops.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate local
  sluicegate local --data limits.db --windows minute,hour,day,month
  sluicegate local --port 0 > local.env        # a free port; then `source local.env`

Exit codes: 0 stopped, 2 bad input, 5 the port or the file cannot be used, or what is left could
not be counted: the next start does.")]
pub(crate) struct Args {
    /// The port on 127.0.0.1; 0 for one that is free.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Keep the data in this file, created if absent; by default it is gone when the process ends.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[command(flatten)]
    metering: Metering,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let table = &options.table();
    check_table_name(table)?;
    show_warnings();
    // From here on no signal is lost.
    let shutdown = interrupted()?;
    let feed = Feed::default();
    let parts = LoopOptions {
        port: args.port,
        storage: args.data.clone().map_or(Storage::Temporary, Storage::File),
        settings: args.metering.settings(table),
        observer: Some(feed.observer()),
    };
    let local = LocalLoop::start(parts).await.map_err(|error| refused(&args, &error))?;
    announce(&local.endpoint_url(), table, &args)?;

    serve(local, shutdown).await?;
    let totals = feed.totals();
    say(&format!(
        "stopped: {} records, {} window updates, {} write units",
        totals.records, totals.window_updates, totals.write_units,
    ));
    Ok(ExitCode::SUCCESS)
}

/// Serves until it is asked to stop and has counted the rest, or is asked twice.
async fn serve(
    local: LocalLoop,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), CliError> {
    let (asked, stopping) = oneshot::channel();
    let shutdown = async {
        shutdown.await;
        say("stopping: counting the records that are left; Ctrl-C again to stop at once");
        let _ = asked.send(());
    };
    let at_once = async {
        // The second signal matters only after the first.
        let _ = stopping.await;
        match interrupted() {
            Ok(again) => again.await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = local.run_until(shutdown) => {
            ended.map_err(|error| CliError::Store(match error {
                Error::Stalled { .. } => format!(
                    "{}; make room on the disk: the next start with the same --data counts the rest",
                    chain(&error)
                ),
                error => chain(&error),
            }))
        }
        () = at_once => {
            Err(CliError::Store("stopped before everything was counted".to_owned()))
        }
    }
}

/// Prints the variables to standard output, ready to paste or to `source`; other messages go to
/// standard error.
fn announce(url: &str, table: &str, args: &Args) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    for (name, value) in [
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", "local"),
        ("AWS_SECRET_ACCESS_KEY", "local"),
        ("AWS_REGION", REGION),
        ("SLUICEGATE_TABLE", table),
    ] {
        writeln!(out, "export {name}={value}")?;
    }
    out.flush()?;
    let kept = match &args.data {
        Some(file) => format!("kept in {}", file.display()),
        None => "gone when this stops (--data FILE keeps it)".to_owned(),
    };
    say(&format!(
        "serving table {table} on {url}, counting {} windows; the data is {kept}",
        args.metering.windows
    ));
    say("paste the lines above into another terminal; Ctrl-C stops");
    Ok(())
}

/// The reason why it cannot start, and the next command to type.
fn refused(args: &Args, error: &Error) -> CliError {
    match error {
        Error::Port { port, source } if source.kind() == std::io::ErrorKind::AddrInUse => {
            CliError::Store(format!(
                "port {port} is in use; take another one with `sluicegate local --port {}`, or a free one with --port 0",
                port.checked_add(1).unwrap_or(8000),
            ))
        }
        Error::InUse { file } => CliError::Store(format!(
            "{} is in use by another `sluicegate local`; stop that one, or take another file",
            file.display()
        )),
        Error::Foreign { .. } => {
            CliError::Store(format!("{}; nothing was changed, take another file", chain(error)))
        }
        Error::HardLinked { .. } => CliError::Store(format!(
            "{}; nothing was changed, remove one of the names or take another file",
            chain(error)
        )),
        _ => CliError::Store(match &args.data {
            Some(file) => format!(
                "{}; check that {} can be written and is a file of `sluicegate local`",
                chain(error),
                file.display()
            ),
            None => chain(error),
        }),
    }
}
