//! `sluicegate entity`: the parents of entities.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use sluicegate::EntityId;
use sluicegate::types::EntityRecord;

use crate::confirm::Confirm;
use crate::connection::Connection;
use crate::error::{CliError, say};
use crate::options::Options;
use crate::output;
use crate::readable::readable;

/// Store, show or delete the parents of entities.
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  sluicegate entity create user-123 --parent team-berlin --cascade
  sluicegate entity children team-berlin

Exit codes: 0 done, 1 there is no record of this entity, or a broken one was left out, 2 bad input or
not confirmed, 5 the table could not be used.")]
pub(crate) enum Args {
    /// Store the parent of an entity; replaces the earlier record.
    ///
    /// Programs that run follow within a minute. A cascade has one level: nothing is taken from the
    /// parent of a parent.
    #[command(after_help = "\
Examples:
  sluicegate entity create user-123 --parent team-berlin --cascade")]
    Create {
        /// The entity.
        entity: EntityId,
        /// Its parent; without this option it has none.
        #[arg(long)]
        parent: Option<EntityId>,
        /// Every acquire takes from the parent's bucket too.
        #[arg(long, requires = "parent")]
        cascade: bool,
    },
    /// Show the stored record of an entity.
    #[command(after_help = "\
Examples:
  sluicegate entity show user-123 --output json")]
    Show {
        /// The entity.
        entity: EntityId,
    },
    /// List the children of an entity.
    #[command(after_help = "\
Examples:
  sluicegate entity children team-berlin")]
    Children {
        /// The parent.
        entity: EntityId,
    },
    /// Delete the stored record of an entity; its buckets, limits and usage stay.
    #[command(after_help = "\
Examples:
  sluicegate entity delete user-123 --yes")]
    Delete {
        /// The entity.
        entity: EntityId,
        #[command(flatten)]
        confirm: Confirm,
    },
}

#[derive(Serialize)]
struct Record {
    entity: String,
    parent: Option<String>,
    cascade: bool,
}

impl From<&EntityRecord> for Record {
    fn from(record: &EntityRecord) -> Self {
        Self {
            entity: record.entity.to_string(),
            parent: record.parent.as_ref().map(ToString::to_string),
            cascade: record.cascade,
        }
    }
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let connection = options.connect().await?;
    let configured = connection.configured();
    let mut exit_code = ExitCode::SUCCESS;
    match args {
        Args::Create { entity, parent, cascade } => {
            let record = EntityRecord { entity, parent, cascade };
            configured.put_entity(&record).await?;
            show(&record, options)?;
            say_what_is_not_charged(&connection, &record).await;
        }
        Args::Show { entity } => show(&recorded(&connection, &entity).await?, options)?,
        Args::Children { entity } => {
            let children = readable(connection.reader().children(&entity)).await?;
            exit_code = children.exit_code();
            let children: Vec<&str> = children.items.iter().map(EntityId::as_str).collect();
            if options.is_json() {
                output::json(&children)?;
            } else if children.is_empty() {
                output::line(&format!("{entity} has no children"))?;
            } else {
                output::line(&children.join("\n"))?;
            }
        }
        Args::Delete { entity, confirm } => {
            recorded(&connection, &entity).await?;
            confirm.ask(&format!("delete the stored record of {entity}"))?;
            configured.delete_entity(&entity).await?;
            if options.is_json() {
                output::json(&serde_json::json!({"entity": entity.as_str(), "deleted": true}))?;
            } else {
                output::line(&format!("{entity} is forgotten"))?;
            }
        }
    }
    Ok(exit_code)
}

/// Says that a cascade ends at the parent, if the parent is known to have one itself.
async fn say_what_is_not_charged(connection: &Connection, record: &EntityRecord) {
    let Some(parent) = record.parent.as_ref().filter(|_| record.cascade) else { return };
    // The record is stored, whatever becomes of this read.
    let of_parent = connection.configured().get_entity(parent).await.ok().flatten();
    if let Some(grandparent) = of_parent.filter(|of| of.cascade).and_then(|of| of.parent) {
        say(&format!(
            "{parent} has a parent itself, {grandparent}: requests of {} take nothing from it",
            record.entity
        ));
    }
}

async fn recorded(connection: &Connection, entity: &EntityId) -> Result<EntityRecord, CliError> {
    connection.configured().get_entity(entity).await?.ok_or_else(|| {
        CliError::Attention(format!(
            "there is no record of {entity}; store its parent with `sluicegate entity create {entity} --parent NAME`"
        ))
    })
}

fn show(record: &EntityRecord, options: &Options) -> Result<(), CliError> {
    let shown = Record::from(record);
    if options.is_json() {
        output::json(&shown)?;
        return Ok(());
    }
    let cascade = if shown.cascade { "yes, every acquire takes from both" } else { "no" };
    let parent = shown.parent.as_deref().unwrap_or("none");
    output::line(&format!("entity   {}\nparent   {parent}\ncascade  {cascade}", shown.entity))?;
    Ok(())
}
