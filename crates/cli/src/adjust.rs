//! `sluicegate adjust`: correct a bucket by hand.

use std::process::ExitCode;

use serde::Serialize;
use sluicegate::Limit;

use crate::acquire::parent;
use crate::amount::Amount;
use crate::error::{CliError, exit};
use crate::options::Options;
use crate::output;

/// Add to what was consumed of some limits, or give tokens back.
///
/// An adjustment is never refused: a balance may go below zero, and the next acquires wait until it
/// is earned back.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate adjust user-123 gpt-4 tpm=+120      # consumed 120 more than was acquired
  sluicegate adjust user-123 gpt-4 tpm=-380 rpm=-1

Exit codes: 0 done, 1 the bucket does not have a limit (nothing was corrected there), 2 bad
input, 5 contended, or the table could not be used.")]
pub(crate) struct Args {
    /// Whose bucket.
    entity: String,
    /// Of what.
    resource: String,
    /// What to add to the consumption of a limit: tpm=+120 takes, tpm=-120 gives back.
    #[arg(required = true, value_name = "LIMIT=TOKENS")]
    amounts: Vec<Amount>,
    /// A limit of the bucket, where neither it nor the table knows it.
    #[arg(long, value_name = "SPEC")]
    limit: Vec<Limit>,
    /// Correct the bucket of the entity's parent too, whatever the entity's record says.
    #[arg(long, conflicts_with = "no_cascade")]
    cascade: bool,
    /// Correct no parent's bucket, whatever the entity's record says.
    #[arg(long)]
    no_cascade: bool,
}

#[derive(Serialize)]
struct Answer {
    adjusted: bool,
    /// Limits that the bucket does not have.
    dropped: Vec<String>,
    /// The guards had to be given up: some of what was taken may be forgiven by the refill.
    forced: bool,
    write_units: f64,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let limiter = options.connect().await?.limiter();
    let mut request =
        limiter.adjust(&args.entity, &args.resource).limits(args.limit.iter().cloned());
    for Amount { limit, milli } in &args.amounts {
        request = request.by_milli(limit.as_str(), *milli);
    }
    if args.cascade {
        request = request.cascade_to(parent(&args.entity, &limiter).await?.as_str());
    }
    if args.no_cascade {
        request = request.no_cascade();
    }
    let adjusted = request.await?;
    let dropped: Vec<String> = adjusted.dropped.iter().map(ToString::to_string).collect();
    let is_whole = dropped.is_empty();
    if options.is_json() {
        let (forced, write_units) = (adjusted.is_forced, adjusted.write_units);
        output::json(&Answer { adjusted: is_whole, dropped, forced, write_units })?;
    } else if is_whole {
        output::line("adjusted")?;
    } else {
        output::line(&format!("not adjusted, the bucket does not have: {}", dropped.join(", ")))?;
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}
