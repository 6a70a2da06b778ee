//! `sluicegate adjust`: corrects a bucket by hand.

use std::process::ExitCode;

use serde::Serialize;
use sluicegate::types::LimitName;
use sluicegate::{AdjustError, EntityId};
use sluicegate_processor::chain;

use crate::amount::Amount;
use crate::bucket::{Bucket, Parent};
use crate::error::{CliError, exit};
use crate::options::Options;
use crate::output;

/// Add to the consumption of some limits, or give tokens back.
///
/// An adjustment is never refused: a balance may go below zero, and the next acquires wait until it
/// is earned back.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate adjust user-123 gpt-4 tpm=+120      # consumed 120 more than was acquired
  sluicegate adjust user-123 gpt-4 tpm=-380 rpm=-1

Exit codes: 0 done, 1 a bucket does not have one of the limits, and the others were corrected, 2 bad
input, 5 contended, or the table could not be used.")]
pub(crate) struct Args {
    #[command(flatten)]
    bucket: Bucket,
    /// Tokens to add to the consumption of a limit: tpm=+120 takes, tpm=-120 gives back.
    #[arg(required = true, value_name = "LIMIT=TOKENS")]
    amounts: Vec<Amount>,
}

#[derive(Serialize)]
struct AdjustOutput {
    /// False if nothing was corrected.
    adjusted: bool,
    /// Limits that a bucket, the entity's own or its parent's, does not have.
    dropped: Vec<String>,
    /// The correction had to give up its conditions on the balance: part of it may have no effect.
    forced: bool,
    write_units: f64,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let limiter = options.connect().await?.limiter().await?;
    let Bucket { entity, resource, limit, .. } = &args.bucket;
    let mut request = limiter.adjust(entity, resource).limits(limit.iter().cloned());
    let amounts = args.amounts.iter().filter(|amount| amount.milli != 0);
    if amounts.clone().next().is_none() {
        return nothing_to_adjust(options);
    }
    for Amount { limit, milli } in amounts {
        request = request.by_milli(limit.as_str(), *milli);
    }
    request = match args.bucket.parent(&limiter).await? {
        Parent::AsStored => request,
        Parent::No => request.no_cascade(),
        Parent::This(parent) => request.cascade_to(parent.as_str()),
    };
    let adjusted = request.await.map_err(|error| left_open(&args.bucket, error))?;
    let dropped: Vec<String> = adjusted.dropped.iter().map(ToString::to_string).collect();
    let is_whole = dropped.is_empty();
    let is_written = adjusted.write_units > 0.0;
    if options.is_json() {
        let (forced, write_units) = (adjusted.is_forced, adjusted.write_units);
        let is_adjusted = is_whole || is_written;
        output::json(&AdjustOutput { adjusted: is_adjusted, dropped, forced, write_units })?;
    } else if is_whole {
        output::line("adjusted")?;
    } else {
        let of = |(entity, limit): &(EntityId, LimitName)| format!("{limit} of {entity}");
        let missing: Vec<String> = adjusted.dropped_of.iter().map(of).collect();
        let done = if is_written { "adjusted, except for" } else { "not adjusted:" };
        let why = "the bucket does not have it yet, the next acquire adds it";
        output::line(&format!("{done} {} ({why})", missing.join(", ")))?;
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}

/// An estimate was exact.
fn nothing_to_adjust(options: &Options) -> Result<ExitCode, CliError> {
    if options.is_json() {
        let (dropped, forced) = (Vec::new(), false);
        output::json(&AdjustOutput { adjusted: false, dropped, forced, write_units: 0.0 })?;
    } else {
        output::line("nothing to adjust")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The error of a correction that may have been made: the same command could make it twice.
fn left_open(Bucket { entity, resource, .. }: &Bucket, error: AdjustError) -> CliError {
    match error {
        AdjustError::Partial { ref failed, .. } => {
            let look = match error.may_have_been_made() {
                true => format!(
                    "look at `sluicegate status {failed} {resource}`, and if it was not made, "
                ),
                false => String::new(),
            };
            CliError::Store(format!(
                "{}; {look}correct it alone: `sluicegate adjust {failed} {resource} ... --no-cascade`",
                chain(&error)
            ))
        }
        error if error.may_have_been_made() => CliError::Store(format!(
            "{}; the correction may have been made: look at `sluicegate status {entity} {resource}`, and at its parent's, before you repeat it, and check --endpoint-url and the network",
            chain(&error)
        )),
        error => error.into(),
    }
}
