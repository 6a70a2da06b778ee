//! `sluicegate budget`: what is left of calendar limits and of limits that count money, and how long
//! it lasts.

mod budget_status;

use std::process::ExitCode;

use sluicegate::{Clock, SystemClock};

use crate::error::{CliError, exit, say};
use crate::options::Options;
use crate::output::{self, amount, duration};
use crate::readable::Readable;
use crate::status::{DELETED, limit_rows};
use crate::whose::{Whose, Words};
use budget_status::{BudgetStatus, Lasts};

/// Show what is left of budgets, what was used of them, and how long they last.
///
/// A budget is a calendar limit, or any limit that counts money.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate budget team-7
  sluicegate budget team-7 gpt-4 --output json
  sluicegate budget --resource gpt-4

GRANTED is what a full budget lacks now; of a calendar limit, what this period took. USED is the part
of it that usage windows show. Both contain the estimates of calls in flight, until these calls
correct them. The difference is consumption that is not counted yet, tokens that leasing processes
hold, the debt that the period began with, tokens that came back for the period before, and use from
before the limit was set.
LASTS goes by the use of the last seven days; of a new budget, by that since its first use, but of
a day at least.

Exit codes: 0 shown, 1 there is no budget, or a bucket or a usage window is broken, 2 bad input, 5 the
table could not be used.")]
pub(crate) struct Args {
    #[command(flatten)]
    whose: Words,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let whose = args.whose.whose()?;
    let connection = options.connect().await?;
    let Readable { items: mut budgets, mut broken } = limit_rows(&connection, &whose).await?;
    budgets.retain(|row| row.from != DELETED && row.found.is_budget());
    let (reader, now) = (connection.reader(), SystemClock.now());
    let mut statuses = Vec::with_capacity(budgets.len());
    for budget in &budgets {
        let used = reader.budget(&budget.bucket.resource, &budget.found, now).await?;
        if used.broken_windows > 0 {
            let (windows, limit) = (used.broken_windows, &budget.found.limit);
            say(&format!(
                "{windows} usage windows cannot be read: the use of {limit} is not known"
            ));
        }
        broken += used.broken_windows;
        statuses.push(BudgetStatus::of(budget, &used, now));
    }
    if options.is_json() {
        output::json(&statuses)?;
    }
    if statuses.is_empty() && broken > 0 {
        return Ok(ExitCode::from(exit::ATTENTION));
    }
    if statuses.is_empty() {
        let nothing = match whose {
            Whose::Bucket(..) => "no budget",
            // Only buckets can be listed, and the first acquire makes them.
            Whose::Entity(_) | Whose::Resource(_) => {
                "no bucket with a budget yet: `sluicegate budget ENTITY RESOURCE` shows one that is stored"
            }
        };
        return Err(CliError::Attention(format!(
            "{whose} has {nothing}; set one with `sluicegate limits set --entity ENTITY usd=200/month`"
        )));
    }
    if !options.is_json() {
        output::line(&shown(&statuses))?;
    }
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}

fn shown(statuses: &[BudgetStatus]) -> String {
    let rows = statuses.iter().map(|budget| {
        let amount = |milli| amount(&budget.limit, milli);
        vec![
            budget.entity.clone(),
            budget.resource.clone(),
            budget.rule.clone(),
            amount(budget.granted_milli.into()),
            amount(budget.left_milli.into()),
            budget.used_milli.map_or("-".to_owned(), amount),
            budget.difference_milli.map_or("-".to_owned(), amount),
            match budget.resets_in_ms {
                None => "never".to_owned(),
                Some(0) => "full".to_owned(),
                Some(millis) => duration(millis),
            },
            match &budget.lasts {
                Lasts::Unknown => "-".to_owned(),
                Lasts::UntilReset => "until then".to_owned(),
                Lasts::Until { at, .. } => format!("until {}", &at[..10]),
            },
        ]
    });
    let header = [
        "entity",
        "resource",
        "budget",
        "granted",
        "left",
        "used",
        "difference",
        "resets in",
        "lasts",
    ];
    output::table(&header, rows, &[3, 4, 5, 6, 7])
}
