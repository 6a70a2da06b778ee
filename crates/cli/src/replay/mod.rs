//! `sluicegate replay`: runs recorded stream events through the same handler as the Lambda.
//!
//! All input is checked before the first record is handled, so bad input leaves nothing
//! half-written. Delivering everything again changes no figure.

mod input;
mod order;
mod output;
mod records;
mod replay_totals;
mod spool;
mod tape;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sluicegate_processor::Processor;
use tokio::time::Instant;

use self::replay_totals::ReplayTotals;
use crate::error::{CliError, exit, say};
use crate::feed::interrupted;
use crate::metering::Metering;
use crate::options::Options;
use input::Input;
use target::Target;

/// Shorter input is done before a progress bar could be read.
const LONG_INPUT: u64 = 5_000;

/// Replay stream events and print the usage windows they add up to.
///
/// The events go through the handler that the Lambda runs, into a DynamoDB engine inside this
/// process or, with --table, into a real table, and the windows are read back from there.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate replay tests/events
  sluicegate replay event.json --windows minute,month --output json
  sluicegate replay tests/events --repeat 3        # the figures stay the same

Exit codes: 0 all counted, 1 some records went to quarantine, or interrupted, 2 bad input (nothing was
written), 5 the table could not be used, 6 the result could not be printed.")]
pub(crate) struct Args {
    /// Files or folders of stream events: the events that Lambda receives ({"Records": [...]}), or
    /// one record per line. Of a folder, the .json, .jsonl and .ndjson files are read in the order
    /// of their names; subfolders are ignored.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    metering: Metering,
    /// The number of records handed to the handler at once.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    batch_size: u16,
    /// Deliver everything this many times.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Write to this DynamoDB table instead of the engine inside this process; the variable of the
    /// environment is ignored.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let interrupted = interrupted()?;
    tokio::select! {
        replayed = replay(args, options) => replayed,
        () = interrupted => Err(CliError::Attention(
            "interrupted; the same command counts the rest, and nothing twice".to_owned(),
        )),
    }
}

async fn replay(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let mut input = Input::read(&args.paths)?;
    let target = Target::open(args.table.as_deref(), options).await?;
    let settings = args.metering.settings(target.table());
    let processor = Processor::new(target.client().clone(), settings);

    let progress = progress_bar(input.records.len() * u64::from(args.repeat));
    let mut totals = ReplayTotals::default();
    let delivered =
        deliver(&args, options.timeout, &mut input, &processor, &mut totals, &progress).await;
    progress.finish_and_clear();
    let moved = input.order.moved();
    if moved > 0 {
        say(&format!(
            "{moved} records stood behind later ones of their item; replayed in stream order"
        ));
    }
    for entry in &totals.quarantined {
        output::quarantined(entry, options.output());
    }
    if let Some(reason) = delivered? {
        return Err(target.refused(&reason));
    }
    let windows = target.read(&totals.windows).await?;
    target.close().await?;

    output::windows(&windows, options.output())?;
    if !options.is_json() {
        output::summary(&totals, windows.len(), input.files);
    }
    let quarantined = !totals.quarantined.is_empty();
    Ok(if quarantined { ExitCode::from(exit::ATTENTION) } else { ExitCode::SUCCESS })
}

/// Passes all records to the processor, as often as requested; returns the reason if it ended
/// early.
async fn deliver(
    args: &Args,
    batch_time: Duration,
    input: &mut Input,
    processor: &Processor,
    totals: &mut ReplayTotals,
    progress: &ProgressBar,
) -> Result<Option<String>, CliError> {
    let size = usize::from(args.batch_size);
    let mut batch = Vec::with_capacity(size);
    for _ in 0..args.repeat {
        input.records.rewind()?;
        loop {
            batch.clear();
            while batch.len() < size
                && let Some(record) = input.order.next(&mut input.records)?
            {
                batch.push(record);
            }
            if batch.is_empty() {
                break;
            }
            let deadline = Instant::now() + batch_time;
            let outcome = processor.handle(&batch, deadline).await;
            totals.add(&outcome);
            if let Some(failure) = outcome.failures.into_iter().next() {
                return Ok(Some(failure.reason));
            }
            progress.inc(batch.len() as u64);
        }
    }
    Ok(None)
}

/// Visible only on a terminal.
fn progress_bar(records: u64) -> ProgressBar {
    if records < LONG_INPUT {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{wide_bar} {human_pos} of {human_len} records, {per_sec}, {eta} left",
    );
    let bar = ProgressBar::new(records);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
