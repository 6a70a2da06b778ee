//! `sluicegate usage export`: usage windows as rows, for the systems that bill and for warehouses.
//!
//! Rows are ordered by day, resource, start, entity and limit: the order in which the index has the
//! windows of a day. So nothing is sorted in memory, and two exports of closed windows have the same
//! bytes.

#[cfg(feature = "s3")]
mod bucket;
mod days;
mod exporter;
mod focus;
mod folder;
mod format;
mod layout;
#[cfg(feature = "parquet")]
mod parquet;
mod place;
mod progress;
mod row;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use sluicegate::dynamo::Reader;
use sluicegate::types::{WindowKind, WindowSpan};
use sluicegate::{Clock, Resource, SystemClock};
use sluicegate_core::TimePoint;
use sluicegate_prices::PriceBook;

use crate::connection::Connection;
use crate::error::{CliError, exit, say};
use crate::feed::interrupted;
use crate::options::Options;
use crate::output::counted;
use crate::pending::{Pending, followed, named};
use days::Days;
use exporter::{Exporter, Findings, Windows, Written};
use folder::Folder;
use format::Format;
use layout::{Layout, Settings};
use place::Place;
use progress::Progress;

/// Export usage windows for billing systems and warehouses.
///
/// Each row is the amount of one limit in one window, with an id that is the same in every export.
/// Two exports of the same days have the same bytes.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate usage export --from 2026-01-01 --to 2026-02-01 --format csv
  sluicegate usage export --from -7d --kind hour --format cloudevents --resource gpt-4
  sluicegate usage export --from 2026-01-01 --format jsonl --folder usage --prices prices.json
  sluicegate usage export --from 2026-01-01 --format parquet --folder s3://bucket/usage

Exit codes: 0 exported, 1 interrupted, or a window could not be read or may have expired, or an amount
has no price, 2 bad input, 5 the table could not be used, 6 the rows could not be written.")]
pub(super) struct Args {
    /// The first day: a date, or -7d.
    #[arg(long, value_name = "DAY", allow_hyphen_values = true)]
    from: TimePoint,
    /// The day after the last one [default: today is the last one].
    #[arg(long, value_name = "DAY", allow_hyphen_values = true)]
    to: Option<TimePoint>,
    /// The kind of windows: minute, hour, day, week, month, year, or a calendar like
    /// month@15/Europe/Berlin. Its time zone is that of the days.
    #[arg(long, default_value = "day", value_name = "KIND")]
    kind: WindowKind,
    /// The format of the rows.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Format,
    /// Only this resource; may be repeated [default: all, found by a scan of the index].
    #[arg(long = "resource", value_name = "RESOURCE")]
    resources: Vec<Resource>,
    /// Write to this file instead of standard output. It is replaced when all rows are written.
    #[arg(long, value_name = "FILE", conflicts_with = "folder")]
    file: Option<PathBuf>,
    /// Write a file for each closed day to this folder, in Hive layout: a path, or s3://BUCKET/PREFIX.
    /// Files that are there stay.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// A price list in JSON. The amounts of rpm, input and output get a cost.
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// A window is closed so many minutes after its end: by then, its records are counted.
    #[arg(long, value_name = "MINUTES", default_value_t = 60)]
    lag: u16,
    /// Include windows that are not closed. Their amounts may still change.
    #[arg(long, conflicts_with_all = ["folder", "lag"])]
    open: bool,
}

pub(super) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let now = SystemClock.now();
    let days = Days::new(args.kind, args.from, args.to, now)?;
    let prices = args.prices.as_deref().map(price_book).transpose()?;
    let named: BTreeSet<Resource> = args.resources.iter().cloned().collect();
    let named: Option<Vec<Resource>> = (!named.is_empty()).then(|| named.into_iter().collect());
    let connection = options.connect().await?;
    let reader = connection.reader();
    let resources = match &named {
        Some(named) => named.clone(),
        None => resources(&reader, &days.span()).await?,
    };
    let described = connection.describe_table().await?;
    let none = || CliError::empty("DescribeTable", connection.table());
    let table = described.table_arn.ok_or_else(none)?;
    let settings = Settings {
        table: &table,
        format: args.format,
        resources: named.as_deref().map(|named| named.iter().map(Resource::as_str).collect()),
        prices: prices.as_ref().map(|prices| prices.currency().code()),
    };
    let folder = match &args.folder {
        Some(folder) => {
            let layout = Layout::new(args.kind, args.format);
            Some(open(folder, layout, &settings, &connection, options).await?)
        }
        None => None,
    };
    let lag_ms = i64::from(args.lag) * 60_000;
    let mut exporter = Exporter {
        read: |span: &WindowSpan| windows(&reader, &resources, span),
        source: table.clone(),
        format: args.format,
        days,
        closed_s: (!args.open).then(|| (now.get() - lag_ms).div_euclid(1_000)),
        now_s: now.get().div_euclid(1_000),
        prices,
        progress: Progress::over(days.iter().count()),
        findings: Findings::default(),
        kept_s: None,
        empty: Vec::new(),
    };
    let interrupted = interrupted()?;
    let exported = tokio::select! {
        exported = export(&mut exporter, args.file.as_deref(), folder.as_ref()) => exported,
        () = interrupted => {
            let advice = match &args.folder {
                Some(_) => "the same command continues",
                None => "the rows are incomplete, and the same command starts anew",
            };
            Err(CliError::Attention(format!("interrupted; {advice}")))
        }
    };
    exporter.progress.finish();
    let Exported { rows, place, has_windows } = exported?;
    let nothing = if has_windows {
        String::new()
    } else {
        let of = if args.resources.is_empty() { "" } else { " of these resources" };
        format!(": no {} window{of} begins in these days, or all have expired", args.kind)
    };
    let left_out = match (exporter.findings.open, folder.is_some()) {
        (0, _) | (_, true) => String::new(),
        (open, false) => format!(", {} left out: not closed yet (--open)", counted(open, "window")),
    };
    say(&format!("{}{place}{left_out}{nothing}", counted(rows, "row")));
    Ok(exporter.findings.exit_code())
}

async fn open(
    folder: &Path,
    layout: Layout,
    settings: &Settings<'_>,
    connection: &Connection,
    options: &Options,
) -> Result<Place, CliError> {
    if let Some(name) = folder.to_str().filter(|name| name.starts_with("s3://")) {
        #[cfg(feature = "s3")]
        {
            let config = connection.config_of_others(options).await;
            let opened =
                bucket::BucketFolder::open(name, &config, options.timeout, layout, settings).await;
            return opened.map(Place::Bucket);
        }
        #[cfg(not(feature = "s3"))]
        return Err(CliError::BadInput(format!(
            "this program cannot write to {name}: build it with the cargo feature `s3`"
        )));
    }
    Folder::open(folder, layout, settings).map(Place::Folder)
}

/// The summary of an export.
struct Exported {
    rows: usize,
    place: String,
    /// False: every day was read, and none has a window.
    has_windows: bool,
}

/// Exports to the destination.
async fn export<R: Fn(&WindowSpan) -> Windows>(
    exporter: &mut Exporter<R>,
    file: Option<&Path>,
    folder: Option<&Place>,
) -> Result<Exported, CliError> {
    let (rows, place) = match (folder, file) {
        (Some(folder), _) => {
            let written = exporter.write_folder(folder).await?;
            (written.rows, written.summary())
        }
        (None, Some(path)) => {
            write_file(exporter, path).await?;
            (exporter.progress.rows(), format!(" in {}", path.display()))
        }
        (None, None) => {
            exporter.write_one(Box::new(io::BufWriter::new(io::stdout()))).await?;
            (exporter.progress.rows(), String::new())
        }
    };
    let has_windows = exporter.empty.len() < exporter.days.iter().count();
    Ok(Exported { rows, place, has_windows })
}

async fn write_file<R: Fn(&WindowSpan) -> Windows>(
    exporter: &mut Exporter<R>,
    path: &Path,
) -> Result<(), CliError> {
    let target = followed(path);
    if target.exists() && !target.is_file() {
        // A pipe or a device is not replaced.
        let file = File::options().write(true).open(&target).map_err(named(path))?;
        let written = exporter.write_one(Box::new(io::BufWriter::new(file))).await;
        // A reader that has left does not have all rows; one of standard output has enough.
        return written.map_err(|error| match error {
            CliError::Output(error) => {
                CliError::Output(io::Error::other(format!("{}: {error}", path.display())))
            }
            error => error,
        });
    }
    let pending = Pending::beside(&target).map_err(named(path))?;
    exporter.write_one(pending.writer()?).await?;
    Ok(pending.publish(&target).map_err(named(path))?)
}

/// The windows of a span by resource, each in the order of the index: by start, then by entity.
fn windows(reader: &Reader, resources: &[Resource], span: &WindowSpan) -> Windows {
    let (reader, span) = (reader.clone(), span.clone());
    let resources = stream::iter(resources.to_vec());
    resources.flat_map(move |resource| reader.usage_of_resource(&resource, &span).boxed()).boxed()
}

async fn resources(reader: &Reader, span: &WindowSpan) -> Result<Vec<Resource>, CliError> {
    let found: BTreeSet<Resource> = reader.resources_with_usage(span).try_collect().await?;
    Ok(found.into_iter().collect())
}

fn price_book(path: &Path) -> Result<PriceBook, CliError> {
    let wrong = |why: String| CliError::BadInput(format!("{}: {why}", path.display()));
    let json = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    PriceBook::from_json(&json).map_err(|error| wrong(error.to_string()))
}

impl Findings {
    fn exit_code(&self) -> ExitCode {
        for why in self.unpriced.values() {
            say(&format!(
                "no cost: {why}; to export its days to a folder again, delete their files there"
            ));
        }
        if self.broken + self.expired == 0 && self.unpriced.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(exit::ATTENTION)
        }
    }
}

impl Written {
    fn summary(&self) -> String {
        let parts =
            [(self.there, "there already"), (self.open, "not closed"), (self.left_out, "left out")];
        let mut text = format!(" in {}", counted(self.files, "new file"));
        for (count, what) in parts {
            if count > 0 {
                text.push_str(&format!(", {} {what}", counted(count, "day")));
            }
        }
        text
    }
}
