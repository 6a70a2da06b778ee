//! `sluicegate budget`: what is left of the limits by the calendar and of those that count money, and
//! how long it lasts.

mod account;

use std::process::ExitCode;

use sluicegate::{Clock, SystemClock};
use sluicegate_core::Currency;

use crate::error::{CliError, exit};
use crate::options::Options;
use crate::output::{self, amount, duration};
use crate::readable::Readable;
use crate::status::{Standing, standings};
use crate::whose::Words;
use account::{Account, Lasts};

/// Show what is left of budgets, what was used of them, and how long they last.
///
/// A budget is a limit by the calendar, or one that counts money.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate budget team-7
  sluicegate budget team-7 gpt-4 --output json
  sluicegate budget --resource gpt-4

GRANTED is taken from the budget in this period, and USED is the part of it that usage windows show.
The difference is reserved by calls that are not settled yet, held by processes that lease, or not
counted yet; a debt from the last period is part of it, too. LASTS goes by the use of the last seven
days.

Exit codes: 0 shown, 1 there is no budget, or a broken bucket was left out, 2 bad input, 5 the table
could not be used.")]
pub(crate) struct Args {
    #[command(flatten)]
    whose: Words,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let whose = args.whose.whose()?;
    let connection = options.connect().await?;
    let Readable { items: mut budgets, broken } = standings(&connection, &whose).await?;
    budgets.retain(is_budget);
    let (reader, now) = (connection.reader(), SystemClock.now());
    let mut accounts = Vec::with_capacity(budgets.len());
    for budget in &budgets {
        accounts.push(Account::of(&reader, budget, now).await?);
    }
    if options.is_json() {
        output::json(&accounts)?;
    }
    if accounts.is_empty() {
        return Err(CliError::Attention(format!(
            "{whose} has no budget; set one with `sluicegate limits set --entity ENTITY usd=200/month`"
        )));
    }
    if !options.is_json() {
        output::line(&shown(&accounts))?;
    }
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}

fn is_budget(standing: &Standing) -> bool {
    let refill = standing.found.rule.refill();
    refill.calendar().is_some() || Currency::of(&standing.limit).is_some()
}

fn shown(accounts: &[Account]) -> String {
    let rows = accounts.iter().map(|account| {
        let amount = |milli| amount(&account.limit, milli);
        vec![
            account.entity.clone(),
            account.resource.clone(),
            account.rule.clone(),
            amount(account.granted_milli.into()),
            amount(account.left_milli.into()),
            account.used_milli.map_or("-".to_owned(), amount),
            account.difference_milli.map_or("-".to_owned(), amount),
            match account.resets_in_ms {
                None => "never".to_owned(),
                Some(0) => "full".to_owned(),
                Some(millis) => duration(millis),
            },
            match &account.lasts {
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
