//! `sluicegate table`: the table itself.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Region;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{
    KeySchemaElement, KeyType, MultiRegionConsistency, TableDescription, TimeToLiveStatus,
};
use clap::Subcommand;
use serde::Serialize;
use sluicegate::dynamo::{TableSetupError, create_table};
use sluicegate_core::keys::{PK, SK};
use sluicegate_processor::other_regions;
use tokio::time::Instant;

use crate::confirm::Confirm;
use crate::connection::Connection;
use crate::error::{CliError, exit};
use crate::options::Options;
use crate::output;

/// DynamoDB deletes a table within seconds.
const GONE_WITHIN: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Create, check or delete the table.
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  sluicegate table create --table my-limits
  sluicegate table status
  sluicegate table delete --yes

Exit codes: 0 done, 1 the table is not as it should be, 2 bad input or not confirmed, 5 the
table could not be used.")]
pub(crate) enum Args {
    /// Create the table with its indexes, stream and TTL, on demand billing.
    #[command(after_help = "\
Examples:
  sluicegate table create --table my-limits --endpoint-url http://127.0.0.1:8000")]
    Create,
    /// Show the table and report deviations from its required settings.
    #[command(after_help = "\
Examples:
  sluicegate table status --output json")]
    Status,
    /// Delete the table with everything in it.
    #[command(after_help = "\
Examples:
  sluicegate table delete --table my-limits --yes")]
    Delete(Confirm),
}

/// The state of a table.
#[derive(Serialize)]
struct Status {
    table: String,
    state: String,
    items: i64,
    bytes: i64,
    stream: Option<String>,
    /// Other regions that the table is in.
    replicas: BTreeSet<String>,
    /// Settings that should be different.
    problems: Vec<String>,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let connection = options.connect().await?;
    match args {
        Args::Create => create(&connection, options).await,
        Args::Status => status(&connection, options).await,
        Args::Delete(confirm) => delete(&connection, &confirm, options).await,
    }
}

async fn create(connection: &Connection, options: &Options) -> Result<ExitCode, CliError> {
    let table = connection.table();
    match create_table(&connection.client(), table).await {
        Ok(()) => {
            done(table, "there", options)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(TableSetupError::Exists { .. }) => Err(CliError::Attention(format!(
            "table {table} exists already; if it was not completed, its problems are shown by `sluicegate table status --table {table}`"
        ))),
        Err(error) => Err(error.into()),
    }
}

async fn status(connection: &Connection, options: &Options) -> Result<ExitCode, CliError> {
    let (client, table) = (connection.client(), connection.table());
    let described = connection.describe_table().await?;
    let ttl = client
        .describe_time_to_live()
        .table_name(table)
        .send()
        .await
        .map_err(|error| CliError::of_sdk("DescribeTimeToLive", table, &error))?;
    let ttl =
        ttl.time_to_live_description.ok_or_else(|| CliError::empty("DescribeTimeToLive", table))?;
    let expires = ttl.attribute_name.as_deref() == Some(sluicegate_core::keys::TTL)
        && matches!(
            ttl.time_to_live_status,
            Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
        );
    let here = client.config().region().map(Region::as_ref);
    let status = Status::of(table, &described, here, expires);
    if options.is_json() {
        output::json(&status)?;
    } else {
        output::line(&status.shown())?;
    }
    Ok(if status.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}

fn has_keys(keys: &[KeySchemaElement], pk: &str, sk: &str) -> bool {
    let is = |key: &KeySchemaElement, name: &str, kind: KeyType| {
        key.attribute_name() == name && *key.key_type() == kind
    };
    matches!(keys, [first, second]
        if is(first, pk, KeyType::Hash) && is(second, sk, KeyType::Range))
}

impl Status {
    fn of(table: &str, described: &TableDescription, here: Option<&str>, expires: bool) -> Self {
        let mut problems = Vec::new();
        let state = described.table_status().map_or("unknown", |status| status.as_str());
        if state != "ACTIVE" {
            problems.push(format!("the table is {state}, not ACTIVE"));
        }
        let is_ours = has_keys(described.key_schema(), PK, SK);
        if !is_ours {
            problems.push(format!(
                "its keys are not {PK} and {SK}: it is no table of this tool; make one with `sluicegate table create`"
            ));
        }
        let indexes = described.global_secondary_indexes();
        // Advice for a table of this tool could harm a table of another program.
        let ours = [sluicegate_core::keys::GSI1, sluicegate_core::keys::GSI2];
        for index in ours.into_iter().filter(|_| is_ours) {
            let found = indexes.iter().find(|found| found.index_name() == Some(index.name));
            let projection = found.and_then(|found| found.projection()?.projection_type());
            match (found, projection.map(|projection| projection.as_str())) {
                (None, _) => problems.push(format!(
                    "index {} is missing: add it to the table with the keys {} and {}",
                    index.name, index.pk, index.sk
                )),
                (Some(found), _) if !has_keys(found.key_schema(), index.pk, index.sk) => {
                    problems.push(format!(
                        "the keys of index {} are not {} and {}: delete it and make it anew",
                        index.name, index.pk, index.sk
                    ));
                }
                (Some(_), Some("KEYS_ONLY")) => {}
                (Some(_), _) => problems.push(format!(
                    "index {} projects more than keys: every acquire pays for it",
                    index.name
                )),
            }
        }
        let view = described.stream_specification().and_then(|stream| stream.stream_view_type());
        if is_ours && view.map(|view| view.as_str()) != Some("NEW_AND_OLD_IMAGES") {
            problems.push(format!(
                "no stream with both images: usage is not counted; `aws dynamodb update-table --table-name {table} --stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES` switches it on, after StreamEnabled=false if it has another stream"
            ));
        }
        if is_ours && !expires {
            problems.push(format!(
                "TTL on attribute ttl is off: nothing expires; `aws dynamodb update-time-to-live --table-name {table} --time-to-live-specification Enabled=true,AttributeName=ttl` switches it on"
            ));
        }
        if described.multi_region_consistency() == Some(&MultiRegionConsistency::Strong) {
            problems.push(
                "multi-region strong consistency: no TTL and no transactions (docs/regions.md)"
                    .to_owned(),
            );
        }
        Self {
            table: table.to_owned(),
            state: state.to_owned(),
            items: described.item_count().unwrap_or(0),
            bytes: described.table_size_bytes().unwrap_or(0),
            stream: described.latest_stream_arn().map(str::to_owned),
            replicas: other_regions(described, here),
            problems,
        }
    }

    fn shown(&self) -> String {
        let mut lines = vec![
            format!("table    {}", self.table),
            format!("state    {}", self.state),
            format!("items    {} (DynamoDB counts every six hours)", self.items),
            format!("size     {} bytes", self.bytes),
            format!("stream   {}", self.stream.as_deref().unwrap_or("none")),
        ];
        if !self.replicas.is_empty() {
            let list = self.replicas.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            lines.push(format!("replicas {list}"));
            lines.push(
                "warning  balances are the last writer's, and a processor in each region counts \
                 usage again unless all have one home region: docs/regions.md"
                    .to_owned(),
            );
        }
        lines.extend(self.problems.iter().map(|problem| format!("problem  {problem}")));
        lines.join("\n")
    }
}

async fn delete(
    connection: &Connection,
    confirm: &Confirm,
    options: &Options,
) -> Result<ExitCode, CliError> {
    let table = connection.table();
    confirm.ask(&format!("delete table {table} with all balances, limits and usage in it"))?;
    let client = connection.client();
    let deleted = client
        .delete_table()
        .table_name(table)
        .send()
        .await
        .map_err(|error| match error.message() {
            // This error has no code of its own.
            Some(message) if message.contains("protected") => CliError::Attention(format!(
                "table {table} is protected against deletion; take that off with `aws dynamodb update-table --table-name {table} --no-deletion-protection-enabled`"
            )),
            _ => CliError::of_sdk("DeleteTable", table, &error),
        })?;
    deleted.table_description.ok_or_else(|| CliError::empty("DeleteTable", table))?;
    done(table, if is_gone(&client, table).await { "deleted" } else { "being deleted" }, options)?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the name is free again: DynamoDB deletes in the background.
async fn is_gone(client: &Client, table: &str) -> bool {
    let until = Instant::now() + GONE_WITHIN;
    while Instant::now() < until {
        if let Err(error) = client.describe_table().table_name(table).send().await
            && error.as_service_error().is_some_and(|error| error.is_resource_not_found_exception())
        {
            return true;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    false
}

/// Says what became of the table.
fn done(table: &str, what: &str, options: &Options) -> Result<(), CliError> {
    if options.is_json() {
        output::json(&serde_json::json!({"table": table, "state": what}))?;
    } else {
        output::line(&format!("table {table} is {what}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::ReplicaDescription;

    use super::*;

    #[test]
    fn a_table_in_several_regions_is_warned_about() {
        let replica = |name| ReplicaDescription::builder().region_name(name).build();
        let described = TableDescription::builder()
            .replicas(replica("us-east-1"))
            .replicas(replica("eu-west-1"));
        let shown = |described| Status::of("limits", &described, Some("us-east-1"), true).shown();
        let global = shown(described.clone().build());
        assert!(global.contains("replicas eu-west-1\nwarning"), "{global}");
        assert!(!global.contains("strong"), "{global}");
        let strong = described.multi_region_consistency(MultiRegionConsistency::Strong);
        let strong = shown(strong.build());
        assert!(strong.contains("problem  multi-region strong consistency"), "{strong}");
        let alone = shown(TableDescription::builder().build());
        assert!(!alone.contains("replicas"), "{alone}");
    }
}
