//! `sluicegate alerts`: the stored thresholds of usage windows, and the outbox.

mod output;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Subcommand;
use sluicegate::types::LimitName;
use sluicegate::{Clock as _, SystemClock};
use sluicegate_core::{Currency, OutboxEntry, OutboxState, Threshold, Thresholds, WindowKinds};

use crate::confirm::Confirm;
use crate::connection::Connection;
use crate::error::{CliError, say};
use crate::limits::{Level, name};
use crate::options::Options;
use crate::readable::readable;

/// Store, show or delete alert thresholds, and list the alerts that usage windows made.
///
/// A limit has the thresholds of the narrowest level that names it: entity and resource, entity,
/// resource, system. Each usage window makes one alert for each threshold that it reaches. Only a
/// processor with alerts switched on (ALERTS=on, or `sluicegate process --alerts`) makes them.
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  sluicegate alerts set --entity team-7 usd=80%,100%
  sluicegate alerts set --system tpm=5000000/day
  sluicegate alerts show
  sluicegate alerts outbox

Exit codes: 0 done, 1 no thresholds are stored there, an alert is not one that was given up, or a broken
item was left out, 2 bad input or not confirmed, 5 the table could not be used.")]
pub(crate) enum Args {
    /// Store thresholds; other limits of the same level keep theirs.
    ///
    /// A percentage is of a calendar limit's amount, in the usage windows of its calendar. An
    /// amount is of one kind of usage window: 500/day. The processor must count that kind of
    /// window.
    #[command(after_help = "\
Examples:
  sluicegate alerts set --entity team-7 usd=80%,100%
  sluicegate alerts set --resource gpt-4 tpm=5000000/day,20000000/month@15/Europe/Berlin")]
    Set {
        #[command(flatten)]
        level: Level,
        /// Thresholds of a limit: NAME=N% or NAME=AMOUNT/KIND, up to ten with commas between them.
        #[arg(required = true, value_name = "SPEC")]
        thresholds: Vec<Spec>,
    },
    /// Show the thresholds of all levels.
    #[command(after_help = "\
Examples:
  sluicegate alerts show --output json")]
    Show,
    /// Delete the thresholds of limits; alerts that were made stay.
    #[command(after_help = "\
Examples:
  sluicegate alerts delete --entity team-7 usd --yes")]
    Delete {
        #[command(flatten)]
        level: Level,
        /// Names of limits.
        #[arg(required = true, value_name = "NAME")]
        limits: Vec<LimitName>,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// List the alerts of the outbox, oldest first.
    #[command(after_help = "\
Examples:
  sluicegate alerts outbox --output json
  sluicegate alerts outbox --closed")]
    Outbox {
        /// Also list alerts that were delivered.
        #[arg(long)]
        closed: bool,
    },
    /// Deliver alerts again that were given up, once the destination accepts alerts again.
    ///
    /// A processor tries each of them as a new one, within some minutes.
    #[command(after_help = "\
Examples:
  sluicegate alerts retry
  sluicegate alerts retry 9f2c41d07b6e8a3315c0d2e4f6a8b9c1")]
    Retry {
        /// Ids of alerts, as `alerts outbox --output json` shows them [default: all that were given
        /// up].
        #[arg(value_name = "ID")]
        ids: Vec<String>,
    },
}

/// A limit with its thresholds.
#[derive(Debug, Clone)]
pub(crate) struct Spec(LimitName, Thresholds);

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (limit, list) =
            text.split_once('=').ok_or("write NAME=THRESHOLDS, like usd=80%,100%")?;
        let limit = LimitName::new(limit).map_err(|error| error.to_string())?;
        if let Some(lower) = Currency::misspelled(limit.as_str()) {
            return Err(format!("a limit of money begins in lower case: write {lower}"));
        }
        let list = Thresholds::parse(&limit, list).map_err(|error| error.to_string())?;
        Ok(Self(limit, list))
    }
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let connection = options.connect().await?;
    let configured = connection.configured();
    match args {
        Args::Set { level, thresholds } => {
            let mut lists = BTreeMap::new();
            for Spec(limit, list) in thresholds {
                if lists.insert(limit.clone(), list).is_some() {
                    return Err(CliError::bad(format!("{limit} is named twice")));
                }
            }
            let stored = configured.set_alerts(&level.scope(), &lists).await?;
            say_kinds_to_count(&lists);
            output::settings(&[stored], options, "no thresholds are stored")?;
        }
        Args::Show => {
            let stored = readable(connection.reader().alerts()).await?;
            output::settings(&stored.items, options, "no thresholds are stored")?;
            return Ok(stored.exit_code());
        }
        Args::Delete { level, limits, confirm } => {
            let scope = level.scope();
            let stored = configured.get_alerts(&scope).await?;
            let stored = stored.map(|stored| stored.thresholds).unwrap_or_default();
            if let Some(limit) = limits.iter().find(|limit| !stored.contains_key(*limit)) {
                return Err(CliError::Attention(format!(
                    "no thresholds of {limit} are stored for {}; nothing was deleted, `sluicegate alerts show` lists them",
                    name(&scope)
                )));
            }
            let listed: Vec<&str> = limits.iter().map(LimitName::as_str).collect();
            let what = format!("the thresholds of {}", listed.join(", "));
            confirm.ask(&format!("delete {what} of {}", name(&scope)))?;
            let left = configured.delete_alerts(&scope, &limits).await?;
            output::settings(left.as_slice(), options, "no thresholds are left there")?;
        }
        Args::Outbox { closed } => {
            let entries = readable(connection.reader().outbox()).await?;
            let is_shown = |entry: &&OutboxEntry| closed || entry.state != OutboxState::Sent;
            let mut shown: Vec<_> = entries.items.iter().filter(is_shown).collect();
            shown.sort_by_key(|entry| entry.at);
            output::outbox(&shown, options)?;
            return Ok(entries.exit_code());
        }
        Args::Retry { ids } => return retry(&connection, &ids, options).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Says which kinds of usage windows a processor must count for these thresholds, apart from those
/// that it counts without being told.
fn say_kinds_to_count(lists: &BTreeMap<LimitName, Thresholds>) {
    let all = || lists.values().flat_map(Thresholds::iter);
    let by_default = WindowKinds::default();
    let kinds = all().filter_map(|threshold| match threshold {
        Threshold::Amount(_, kind) => Some(kind),
        Threshold::Percent(_) => None,
    });
    let kinds = kinds.filter(|kind| by_default.iter().all(|counted| counted != *kind));
    let mut kinds: BTreeSet<_> = kinds.map(|kind| kind.to_string()).collect();
    if all().any(|threshold| matches!(threshold, Threshold::Percent(_))) {
        kinds.insert("the calendar of each limit that has a percentage".to_owned());
    }
    if !kinds.is_empty() {
        let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
        say(&format!(
            "for these thresholds the processor must count (--windows, UsageWindows; {by_default} by default): {kinds}"
        ));
    }
}

/// Opens the entries of these alerts again, or of all that were given up if none is named.
async fn retry(
    connection: &Connection,
    ids: &[String],
    options: &Options,
) -> Result<ExitCode, CliError> {
    let entries = readable(connection.reader().outbox()).await?;
    let given_up = entries.items.iter().filter(|entry| entry.state == OutboxState::Failed);
    let mut chosen: Vec<_> = given_up.collect();
    if !ids.is_empty() {
        let id = |entry: &OutboxEntry| entry.alert.id().to_string();
        let is_given_up = |named: &&String| chosen.iter().any(|entry| id(entry) == **named);
        if let Some(other) = ids.iter().find(|named| !is_given_up(named)) {
            return Err(CliError::Attention(format!(
                "no alert with the id {other} was given up, so nothing was done; `sluicegate alerts outbox` lists those that were given up as failed"
            )));
        }
        chosen.retain(|entry| ids.contains(&id(entry)));
    }
    chosen.sort_by_key(|entry| entry.at);
    let (configured, mut opened) = (connection.configured(), Vec::new());
    for entry in chosen {
        opened.extend(configured.retry_alert(entry, SystemClock.now()).await?);
    }
    if opened.is_empty() && !options.is_json() {
        crate::output::line("no alert was given up")?;
    } else {
        output::outbox(&opened.iter().collect::<Vec<_>>(), options)?;
    }
    Ok(entries.exit_code())
}
