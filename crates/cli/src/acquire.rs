//! `sluicegate acquire`: takes tokens of several limits at once, or reports when they are
//! available.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use sluicegate::types::Wait;
use sluicegate::{AcquireError, AcquireRequest, LimitStatus, Limiter};

use crate::amount::Amount;
use crate::bucket::{Bucket, Parent};
use crate::error::{CliError, exit};
use crate::options::Options;
use crate::output::{self, amount, duration};

/// Take tokens of one or more limits, all or none.
///
/// Limits come from the command line (--limit) or from the table (`sluicegate limits set`).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate acquire user-123 gpt-4 --consume rpm=1 --consume tpm=500 --limit rpm=100/min --limit tpm=100000/min,burst=200000
  sluicegate acquire user-123 gpt-4 --consume rpm=1 --output json      # limits from the table
  sluicegate acquire user-123 gpt-4 --consume tpm=500 --wait 30        # up to 30 s for the tokens

A limit is NAME=AMOUNT/PERIOD[,burst=N]; the period is s, min, h, d, or several like 30s.
By the calendar it is day, week, month or year: NAME=AMOUNT/month[@DAY][,tz=ZONE].

Exit codes: 0 granted, 2 bad input, 3 limit exceeded, 4 never admissible (more than a full
bucket holds), 5 contended, or the table could not be used.")]
pub(crate) struct Args {
    #[command(flatten)]
    bucket: Bucket,
    /// Tokens to take of each limit, like rpm=1 or tpm=0.5; repeat for several limits.
    #[arg(long, required = true, value_name = "LIMIT=TOKENS")]
    consume: Vec<Amount>,
    /// Wait up to this many seconds for tokens that come in this time.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32))]
    wait: Option<u32>,
}

#[derive(Serialize)]
struct AcquireOutput {
    granted: bool,
    retry_after_ms: Option<u64>,
    limits: Vec<LimitOutput>,
}

/// The status of one limit: after the grant, or at the refusal.
#[derive(Serialize)]
struct LimitOutput {
    entity: String,
    limit: String,
    asked_milli: i64,
    available_milli: i64,
    burst_milli: i64,
    violated: bool,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let limiter = options.connect().await?.limiter().await?;
    let request = request(&args, &limiter).await?;
    let (answer, verdict, code) = match request.await {
        Ok(permit) => {
            let limits = permit.remaining().iter().map(LimitOutput::from).collect();
            let answer = AcquireOutput { granted: true, retry_after_ms: None, limits };
            (answer, "granted".to_owned(), 0)
        }
        Err(AcquireError::LimitExceeded(exceeded)) => {
            let retry_after_ms = exceeded
                .retry_after
                .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            let verdict = match retry_after_ms {
                Some(millis) => format!("limit exceeded: ask again in {}", duration(millis)),
                None => "limit exceeded: it does not refill".to_owned(),
            };
            let limits = exceeded.limits.iter().map(LimitOutput::from).collect();
            let answer = AcquireOutput { granted: false, retry_after_ms, limits };
            (answer, verdict, exit::LIMIT_EXCEEDED)
        }
        Err(AcquireError::NeverAdmissible(never)) => {
            let limits = never
                .limits
                .iter()
                .map(|status| LimitOutput {
                    violated: status.wait == Wait::ExceedsBurst,
                    ..LimitOutput::from(status)
                })
                .collect();
            let answer = AcquireOutput { granted: false, retry_after_ms: None, limits };
            let verdict =
                "never admissible: a full bucket holds less; ask for less or raise the limit";
            (answer, verdict.to_owned(), exit::NEVER_ADMISSIBLE)
        }
        Err(error) => return Err(error.into()),
    };
    if options.is_json() {
        output::json(&answer)?;
    } else {
        output::line(&shown(&answer, &verdict))?;
    }
    Ok(code.into())
}

async fn request<'a>(
    args: &Args,
    limiter: &'a Limiter,
) -> Result<AcquireRequest<&'a Limiter>, CliError> {
    let Bucket { entity, resource, limit, .. } = &args.bucket;
    let mut request = limiter.acquire(entity, resource).limits(limit.iter().cloned());
    for Amount { limit, milli } in &args.consume {
        request = request.consume_milli(limit.as_str(), *milli);
    }
    request = match args.bucket.parent(limiter).await? {
        Parent::AsStored => request,
        Parent::No => request.no_cascade(),
        Parent::This(parent) => request.cascade_to(parent.as_str()),
    };
    if let Some(seconds) = args.wait {
        request = request.wait_up_to(Duration::from_secs(seconds.into()));
    }
    Ok(request)
}

impl From<&LimitStatus> for LimitOutput {
    fn from(status: &LimitStatus) -> Self {
        Self {
            entity: status.entity.to_string(),
            limit: status.limit.to_string(),
            asked_milli: status.asked.get(),
            available_milli: status.available.get(),
            burst_milli: status.rule.burst().get(),
            violated: status.is_violated(),
        }
    }
}

fn shown(answer: &AcquireOutput, verdict: &str) -> String {
    let available = if answer.granted { "left" } else { "available" };
    let rows = answer.limits.iter().map(|limit| {
        vec![
            limit.entity.clone(),
            limit.limit.clone(),
            amount(&limit.limit, limit.asked_milli),
            amount(&limit.limit, limit.available_milli),
            amount(&limit.limit, limit.burst_milli),
            if limit.violated { "short" } else { "" }.to_owned(),
        ]
    });
    let header = ["entity", "limit", "asked", available, "burst", ""];
    format!("{verdict}\n\n{}", output::table(&header, rows, &[2, 3, 4]))
}
