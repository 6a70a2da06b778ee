//! `sluicegate usage check`: checks that the figures agree with one another.
//!
//! No figure is trusted: hours are compared with days, and both with the counters of the buckets,
//! through the records that the stream still has.

mod days;
mod findings;
mod records;
mod stream;

use std::process::ExitCode;
use std::time::Duration;

use sluicegate::types::{WindowKind, WindowSpan};
use sluicegate::{Clock, SystemClock};
use sluicegate_core::{TimePoint, WindowKinds, Zone};

use crate::connection::Connection;
use crate::error::CliError;
use crate::options::{Options, Output};
use crate::whose::{Whose, Words};
use findings::Findings;

/// Records are counted moments after they are written; hours and days are separate writes.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// Compare hours with days, and windows with the buckets' counters.
///
/// The second comparison uses the records that the stream still has (24 hours): their windows must
/// hold their amounts, and the records must lead up to the counter in the bucket. Figures that
/// cannot be checked are named.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate usage check user-123
  sluicegate usage check --resource gpt-4 --from -2d --output json

Exit codes: 0 all that could be checked agrees, 1 figures differ or nothing could be checked,
2 bad input, 5 the table could not be used.")]
pub(super) struct Args {
    #[command(flatten)]
    whose: Words,
    /// Include days from this time on: an RFC 3339 time or -7d.
    #[arg(long, default_value = "-7d", value_name = "TIME", allow_hyphen_values = true)]
    from: TimePoint,
    /// Include days before this time.
    #[arg(long, default_value = "now", value_name = "TIME", allow_hyphen_values = true)]
    to: TimePoint,
    /// The kinds of windows to compare with the counters. A kind that is not counted is left out.
    #[arg(long, default_value = "minute,hour,day,week,month,year", value_name = "KINDS")]
    windows: WindowKinds,
}

pub(super) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    if options.output() == Output::Csv {
        return Err(CliError::bad("a check has no CSV output; use --output table or json"));
    }
    let whose = args.whose.whose()?;
    let now = SystemClock.now();
    let starts = args.from.resolve(now, Zone::utc())..args.to.resolve(now, Zone::utc());
    if starts.start >= starts.end {
        return Err(CliError::bad("--from is not before --to; nothing lies between them"));
    }
    let connection = options.connect().await?;
    let days = WindowSpan { kind: WindowKind::DAY, starts };
    let mut findings = check(&connection, &whose, &days, &args.windows).await?;
    for _ in 1..TRIES {
        if findings.differ.is_empty() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        findings = check(&connection, &whose, &days, &args.windows).await?;
    }
    findings.print(&connection, options).await
}

async fn check(
    connection: &Connection,
    whose: &Whose,
    days: &WindowSpan,
    kinds: &WindowKinds,
) -> Result<Findings, CliError> {
    let mut findings = Findings::default();
    days::check(connection, whose, days, &mut findings).await?;
    stream::check(connection, whose, kinds, &mut findings).await?;
    Ok(findings)
}
