//! `sluicegate usage`: the consumption, by windows.

mod chart;
mod check;
mod csv;
mod export;
mod html;
mod series;
mod windows;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use sluicegate::types::{EpochMillis, WindowKind, WindowSpan};
use sluicegate::{Clock, SystemClock};
use sluicegate_core::TimePoint;

use crate::error::{CliError, exit};
use crate::options::{Options, Output};
use crate::output;
use crate::readable::Readable;
use crate::whose::Words;
use series::{Question, Series};

/// Show the consumption, by windows.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate usage user-123 gpt-4
  sluicegate usage user-123 --window day --from -30d --chart
  sluicegate usage user-123 --window month@15/Europe/Berlin
  sluicegate usage --resource gpt-4 --from 2026-01-28T00:00:00Z --to 2026-01-29T00:00:00Z --output csv
  sluicegate usage user-123 gpt-4 --html usage.html
  sluicegate usage check user-123
  sluicegate usage export --from 2026-01-01 --to 2026-02-01 --format csv

Exit codes: 0 shown, 1 without broken items, 2 bad input, 5 the table could not be used, 6 the page could not be written.")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    whose: Words,
    #[command(flatten)]
    span: Span,
    /// Draw bars in the terminal.
    #[arg(long, conflicts_with_all = ["output", "html"])]
    chart: bool,
    /// Write a page with a chart for every limit to this file; it needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The output format of the windows [default: table].
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
}

#[derive(Subcommand)]
enum Action {
    Check(check::Args),
    Export(export::Args),
}

/// The windows that are requested.
#[derive(clap::Args)]
pub(crate) struct Span {
    /// The kind of windows: minute, hour, day, week, month, year, or a calendar like
    /// month@15/Europe/Berlin.
    #[arg(long, default_value = "hour", value_name = "KIND")]
    window: WindowKind,
    /// Include windows from this time on: an RFC 3339 time, a day like 2026-01-28 in the time zone
    /// of the windows, or -24h, -7d [default: 60 minutes, 24 hours, 30 days, or 12 weeks, months or
    /// years before --to].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<TimePoint>,
    /// Include windows before this time.
    #[arg(long, default_value = "now", value_name = "TIME", allow_hyphen_values = true)]
    to: TimePoint,
}

impl Span {
    /// The requested windows.
    ///
    /// # Errors
    /// [`CliError::BadInput`] if it ends before it begins.
    pub(crate) fn resolve(&self, now: EpochMillis) -> Result<WindowSpan, CliError> {
        let mut span = WindowSpan::until(self.to.resolve(now, self.window.zone()), self.window);
        if let Some(from) = self.from {
            span.starts.start = from.resolve(now, self.window.zone());
        }
        if span.starts.is_empty() {
            return Err(CliError::bad("--from is not before --to; nothing lies between them"));
        }
        Ok(span)
    }
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    match args.action {
        Some(Action::Check(args)) => return check::run(args, options).await,
        Some(Action::Export(_)) if args.output.is_some() => {
            return Err(CliError::bad("an export has no --output; give its --format"));
        }
        Some(Action::Export(args)) => return export::run(args, options).await,
        None => {}
    }
    let whose = args.whose.whose()?;
    let span = args.span.resolve(SystemClock.now())?;
    let question = Question { whose, span };
    if args.chart || args.html.is_some() {
        if args.output.is_some() {
            return Err(CliError::bad(
                "--output is for the windows as text: leave it out with --chart and --html",
            ));
        }
        question.check_length()?;
    }
    let connection = options.connect().await?;
    let Readable { items: windows, broken } =
        windows::read(&connection, &question.whose, &question.span).await?;
    if let Some(file) = &args.html {
        let page = html::page(&question, &windows);
        let told =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        std::fs::write(file, page).map_err(told)?;
        output::line(&format!("wrote {}", file.display()))?;
    } else if args.chart {
        let width = chart::terminal_columns();
        output::line(&chart::charts(&question, Series::all(&question, &windows), width))?;
    } else {
        match args.output.unwrap_or_default() {
            Output::Json => output::windows::json(&windows)?,
            Output::Csv => output::exact(&csv::lines(&windows))?,
            Output::Table if windows.is_empty() => output::line(&question.nothing())?,
            Output::Table => output::line(&output::windows::tables(&windows))?,
        }
    }
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}
