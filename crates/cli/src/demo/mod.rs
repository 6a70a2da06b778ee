//! `sluicegate demo`: simulated gateways to a language model, one of their tenants greedy, over the
//! embedded engine.

mod board;
mod gateways;
mod headless;
mod live;
mod patient;
mod traffic;
mod view;

use std::process::ExitCode;

use crate::error::CliError;
use crate::output;

/// Watch limits at work: simulated gateways, in the terminal or as a summary.
///
/// Six tenants share a model, each with limits of requests and of tokens a minute; they have bursts,
/// and one asks for far more than its share. Everything runs in this process, on the engine of
/// `sluicegate local`; nothing is kept.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate demo
  sluicegate demo --leased
  sluicegate demo --headless --seconds 60 --seed 1

Exit codes: 0 done, 1 the usage windows differ from what was consumed, 2 bad input or no terminal to
draw on, 5 the engine failed.")]
pub(crate) struct Args {
    /// Draw nothing and wait for nothing: simulate, then print a summary as JSON.
    #[arg(long)]
    headless: bool,
    /// The time to run, in seconds of the gateways' time [default: in the terminal until `q`].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: Option<u32>,
    /// Decide in the process, with tokens leased from the table: few writes, whose number per
    /// second is shown beside the admitted requests.
    #[arg(long)]
    leased: bool,
    /// The seed of the tenants' requests: the same seed makes the same calls.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// The duration of a headless run if none is given.
const HEADLESS_SECONDS: u32 = 60;

pub(crate) async fn run(args: Args) -> Result<ExitCode, CliError> {
    if !args.headless {
        return live::run(args.seconds, args.seed, args.leased).await;
    }
    let seconds = args.seconds.unwrap_or(HEADLESS_SECONDS);
    let summary = headless::run(seconds, args.seed, args.leased).await?;
    output::json(&summary)?;
    if summary.usage_is_exact {
        return Ok(ExitCode::SUCCESS);
    }
    let differs = "the usage windows differ from what was consumed; please report this seed";
    Err(CliError::Attention(differs.to_owned()))
}
