//! `sluicegate replay`: recorded stream events through the very handler that the Lambda runs.
//!
//! All input is checked before the first record is handled, so bad input leaves nothing
//! half-written. Delivering everything again changes no figure.

mod input;
mod output;
mod target;

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::value::RawValue;
use sluicegate_core::WindowKind;
use sluicegate_core::keys::ItemKey;
use sluicegate_processor::{Processor, Quarantined, Settings};
use tokio::time::Instant;

use crate::error::CliError;
use input::Input;
use target::Target;

/// How long one batch may be repeated against a table that throttles.
const BATCH_TIME: Duration = Duration::from_secs(60);
/// Input shorter than this is done before a progress bar could be read.
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

Exit codes: 0 all counted, 1 some records went to quarantine, 2 bad input (nothing was
written), 5 the table could not be used.")]
pub(crate) struct Args {
    /// Files or folders of stream events: what Lambda receives ({"Records": [...]}), or one record
    /// a line. A folder's .json, .jsonl and .ndjson files are taken by name.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Usage windows to count: any of minute, hour, day, month.
    #[arg(long, value_delimiter = ',', default_value = "hour,day", value_name = "KINDS")]
    windows: Vec<WindowKind>,
    /// Records handed to the handler at once.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    batch_size: u16,
    /// Deliver everything this many times.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Write to this DynamoDB table instead of the engine inside this process.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Where the table is; by default as the AWS environment says.
    #[arg(long, value_name = "URL", requires = "table")]
    endpoint_url: Option<String>,
    /// How to print the windows.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}

/// What the batches added up to.
#[derive(Default)]
struct Replayed {
    windows: HashSet<ItemKey>,
    quarantined: Vec<Quarantined>,
    seen: HashSet<ItemKey>,
    records: u64,
    duplicates: u64,
    write_units: f64,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, CliError> {
    let input = Input::find(&args.paths)?;
    let total = input.check()?;
    let target = Target::open(args.table.as_deref(), args.endpoint_url.as_deref()).await?;
    let mut settings = Settings::new(target.table());
    settings.windows.clone_from(&args.windows);
    settings.windows.sort_unstable();
    settings.windows.dedup();
    let processor = Processor::new(target.client().clone(), settings);

    let progress = progress_bar(total * u64::from(args.repeat));
    let replayed = deliver(&args, &input, &processor, &progress).await;
    progress.finish_and_clear();
    let replayed = replayed?;
    let windows = target.read(&replayed.windows).await?;
    target.close().await?;

    output::windows(&windows, args.output)?;
    for entry in &replayed.quarantined {
        output::quarantined(entry, args.output);
    }
    if args.output == Output::Table {
        output::summary(&replayed, windows.len(), input.files());
    }
    Ok(if replayed.quarantined.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Feeds every file, as often as asked, in batches that run on across files.
async fn deliver(
    args: &Args,
    input: &Input,
    processor: &Processor,
    progress: &ProgressBar,
) -> Result<Replayed, CliError> {
    let mut replayed = Replayed::default();
    let size = usize::from(args.batch_size);
    for _ in 0..args.repeat {
        let mut pending: Vec<Box<RawValue>> = Vec::new();
        for file in input.load() {
            pending.extend(file?);
            let whole = pending.len() - pending.len() % size;
            let rest = pending.split_off(whole);
            for batch in pending.chunks(size) {
                handle(processor, batch, &mut replayed).await?;
                progress.inc(batch.len() as u64);
            }
            pending = rest;
        }
        if !pending.is_empty() {
            handle(processor, &pending, &mut replayed).await?;
            progress.inc(pending.len() as u64);
        }
    }
    Ok(replayed)
}

async fn handle(
    processor: &Processor,
    batch: &[Box<RawValue>],
    replayed: &mut Replayed,
) -> Result<(), CliError> {
    let outcome = processor
        .handle(batch, Instant::now() + BATCH_TIME)
        .await
        .map_err(|error| CliError::Store(error.to_string()))?;
    if let Some(failure) = outcome.failures.first() {
        let table = &processor.settings().table;
        return Err(CliError::Store(format!(
            "table {table} did not take the windows: {}. What was counted stays counted; run the same command again to go on",
            failure.reason
        )));
    }
    replayed.records += outcome.report.records;
    replayed.duplicates += outcome.report.duplicates_dropped;
    replayed.write_units += outcome.report.write_units;
    replayed.windows.extend(outcome.windows);
    for entry in outcome.quarantined {
        if replayed.seen.insert(entry.key.clone()) {
            replayed.quarantined.push(entry);
        }
    }
    Ok(())
}

/// Visible only where a person looks at it.
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
