//! `sluicegate limits`: the stored limits of the table.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use sluicegate::types::{LimitName, LimitsScope, StoredLimits};
use sluicegate::{Clock, EntityId, Limit, Resource, SystemClock};

use crate::confirm::Confirm;
use crate::error::CliError;
use crate::options::Options;
use crate::output;

/// Store, show or delete limits.
///
/// A request takes each limit that it does not name itself from the narrowest level that has it:
/// entity and resource, entity, resource, system.
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  sluicegate limits set --system rpm=100/min
  sluicegate limits set --entity user-123 --resource gpt-4 tpm=200000/min,burst=400000
  sluicegate limits show --system
  sluicegate limits delete --entity user-123 --resource gpt-4 tpm --yes

Exit codes: 0 done, 1 no limit is stored there, 2 bad input or not confirmed, 5 contended, or the
table could not be used.")]
pub(crate) enum Args {
    /// Store limits; other limits of the same level stay as they are.
    #[command(after_help = "\
Examples:
  sluicegate limits set --resource gpt-4 rpm=100/min tpm=100000/min,burst=200000")]
    Set {
        #[command(flatten)]
        level: Level,
        /// Limits: NAME=AMOUNT/PERIOD[,burst=N]; the period is s, min, h, d, or several like 30s.
        /// By the calendar it is day, week, month or year: NAME=AMOUNT/month[@DAY][,tz=ZONE].
        #[arg(required = true, value_name = "SPEC")]
        limits: Vec<Limit>,
    },
    /// Show the limits of a level.
    #[command(after_help = "\
Examples:
  sluicegate limits show --entity user-123 --output json")]
    Show {
        #[command(flatten)]
        level: Level,
    },
    /// Delete limits of a level by name; buckets that got them from there drop them.
    #[command(after_help = "\
Examples:
  sluicegate limits delete --resource gpt-4 rpm --yes
  sluicegate limits delete --system --all --yes")]
    Delete {
        #[command(flatten)]
        level: Level,
        /// Names of limits.
        #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "NAME")]
        limits: Vec<LimitName>,
        /// Every limit of the level.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// The level that the limits apply to.
#[derive(clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Level {
    /// Every entity on every resource.
    #[arg(long, conflicts_with_all = ["entity", "resource"])]
    system: bool,
    /// This entity; with --resource, on that resource only.
    #[arg(long, value_name = "NAME")]
    entity: Option<EntityId>,
    /// This resource, every entity unless --entity names one.
    #[arg(long, value_name = "NAME")]
    resource: Option<Resource>,
}

impl Level {
    pub(crate) fn scope(&self) -> LimitsScope {
        LimitsScope::of(self.entity.clone(), self.resource.clone())
    }
}

#[derive(Serialize)]
struct Shown {
    level: String,
    limits: Vec<String>,
    /// Milliseconds since 1970.
    updated_at: i64,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let configured = options.connect().await?.configured();
    let now = SystemClock.now();
    match args {
        Args::Set { level, limits } => {
            show(&configured.set_limits(&level.scope(), &limits, now).await?, options)?;
        }
        Args::Show { level } => {
            let scope = level.scope();
            match configured.get_limits(&scope).await? {
                Some(stored) if !stored.rules.is_empty() => show(&stored, options)?,
                _ => return Err(none(&scope)),
            }
        }
        Args::Delete { level, limits, all, confirm } => {
            let scope = level.scope();
            let stored = configured.get_limits(&scope).await?;
            // The limits of a level may all be deleted.
            let stored = stored.filter(|stored| !stored.rules.is_empty());
            let stored = stored.ok_or_else(|| {
                CliError::Attention(format!(
                    "no limits are stored for {}: nothing to delete",
                    name(&scope)
                ))
            })?;
            if let Some(limit) = limits.iter().find(|limit| !stored.rules.contains_key(*limit)) {
                return Err(CliError::Attention(format!(
                    "no limit {limit} is stored for {}; nothing was deleted, `sluicegate limits show {}` lists them",
                    name(&scope),
                    arguments(&scope)
                )));
            }
            let names: Vec<LimitName> =
                if all { stored.rules.keys().cloned().collect() } else { limits };
            let listed: Vec<&str> = names.iter().map(LimitName::as_str).collect();
            confirm.ask(&format!("delete {} of {}", listed.join(", "), name(&scope)))?;
            let left = configured.delete_limits(&scope, &names, now).await?;
            show(&left.unwrap_or(stored), options)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn none(scope: &LimitsScope) -> CliError {
    CliError::Attention(format!(
        "no limits are stored for {}; store some with `sluicegate limits set`",
        name(scope)
    ))
}

/// The arguments that name a level.
fn arguments(scope: &LimitsScope) -> String {
    match scope {
        LimitsScope::EntityResource(entity, resource) => {
            format!("--entity {entity} --resource {resource}")
        }
        LimitsScope::Entity(entity) => format!("--entity {entity}"),
        LimitsScope::Resource(resource) => format!("--resource {resource}"),
        LimitsScope::System => "--system".to_owned(),
    }
}

/// A level in words.
pub(crate) fn name(scope: &LimitsScope) -> String {
    match scope {
        LimitsScope::EntityResource(entity, resource) => {
            format!("entity {entity} on resource {resource}")
        }
        LimitsScope::Entity(entity) => format!("entity {entity}"),
        LimitsScope::Resource(resource) => format!("resource {resource}"),
        LimitsScope::System => "the system".to_owned(),
    }
}

fn show(stored: &StoredLimits, options: &Options) -> Result<(), CliError> {
    let limits =
        stored.rules.iter().map(|(limit, rule)| Limit::from_rule(limit, *rule).to_string());
    let limits: Vec<String> = limits.collect();
    let level = name(&stored.scope);
    if options.is_json() {
        output::json(&Shown { level, limits, updated_at: stored.updated_at.get() })?;
    } else if limits.is_empty() {
        output::line(&format!("{level} has no limits"))?;
    } else {
        output::line(&format!("limits of {level}\n{}", limits.join("\n")))?;
    }
    Ok(())
}
