//! `sluicegate adjust`: corrects a bucket by hand.

use std::process::ExitCode;

use serde::Serialize;

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

Exit codes: 0 done, 1 the bucket does not have a limit (nothing was corrected there), 2 bad
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
    adjusted: bool,
    /// Limits that the bucket does not have.
    dropped: Vec<String>,
    /// The correction had to give up its conditions on the balance: part of it may have no effect.
    forced: bool,
    write_units: f64,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let limiter = options.connect().await?.limiter().await?;
    let Bucket { entity, resource, limit, .. } = &args.bucket;
    let mut request = limiter.adjust(entity, resource).limits(limit.iter().cloned());
    for Amount { limit, milli } in &args.amounts {
        request = request.by_milli(limit.as_str(), *milli);
    }
    request = match args.bucket.parent(&limiter).await? {
        Parent::AsStored => request,
        Parent::No => request.no_cascade(),
        Parent::This(parent) => request.cascade_to(parent.as_str()),
    };
    let adjusted = request.await?;
    let dropped: Vec<String> = adjusted.dropped.iter().map(ToString::to_string).collect();
    let is_whole = dropped.is_empty();
    if options.is_json() {
        let (forced, write_units) = (adjusted.is_forced, adjusted.write_units);
        output::json(&AdjustOutput { adjusted: is_whole, dropped, forced, write_units })?;
    } else if is_whole {
        output::line("adjusted")?;
    } else {
        output::line(&format!("not adjusted, the bucket does not have: {}", dropped.join(", ")))?;
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}
