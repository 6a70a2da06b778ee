//! The target of the windows: an engine inside this process, or a table.

use std::collections::HashSet;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::StreamSpecification;
use sluicegate::dynamo::Reader;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{EntityId, Resource, UsageWindow};
use sluicegate_local::{EmbeddedEngine, Storage};
use sluicegate_processor::chain;

use crate::error::CliError;
use crate::options::Options;

/// The table inside the engine.
const EMBEDDED_TABLE: &str = "sluicegate-limits";

pub(super) struct Target {
    client: Client,
    /// With the SDK's own retries, unlike the processor's client.
    reader: Reader,
    table: String,
    /// The endpoint of the table, for messages.
    endpoint: String,
    engine: Option<EmbeddedEngine>,
}

impl Target {
    /// Opens the table that the command line names, or starts an engine with a new one. The table
    /// of the environment is ignored: a replay for a look must not write to it.
    pub(super) async fn open(table: Option<&str>, options: &Options) -> Result<Self, CliError> {
        if table.is_none() {
            return match options.endpoint_url {
                Some(_) => Err(CliError::bad("--endpoint-url has no effect without --table")),
                None => Self::embedded().await,
            };
        }
        let connection = options.connect().await?;
        let client = sluicegate_processor::client(connection.config());
        let (reader, table) = (connection.reader(), connection.table().to_owned());
        let endpoint = options.endpoint().unwrap_or_else(|| "DynamoDB".to_owned());
        Ok(Self { client, reader, table, endpoint, engine: None })
    }

    async fn embedded() -> Result<Self, CliError> {
        let failed = |error: sluicegate_local::Error| {
            CliError::Store(format!("the embedded engine failed: {}", chain(&error)))
        };
        // On disk, so that memory does not bound the number of windows.
        let engine = EmbeddedEngine::start(Storage::Temporary).await.map_err(failed)?;
        let client = sluicegate_local::client::dynamodb(&engine.endpoint_url());
        let created = sluicegate_local::table::create_table(&client, EMBEDDED_TABLE).await;
        created.map_err(|error| failed(error.into()))?;
        without_stream(&client).await?;
        Ok(Self {
            reader: Reader::new(client.clone(), EMBEDDED_TABLE),
            client,
            table: EMBEDDED_TABLE.to_owned(),
            endpoint: engine.endpoint_url(),
            engine: Some(engine),
        })
    }

    pub(super) fn table(&self) -> &str {
        &self.table
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// The reason why a batch failed, and the next thing to do.
    pub(super) fn refused(&self, reason: &str) -> CliError {
        let Self { table, endpoint, .. } = self;
        CliError::Store(match self.engine {
            Some(_) => format!(
                "the engine in this process did not take the windows: {reason}; give each batch longer with --timeout"
            ),
            None => format!(
                "table {table} of {endpoint} did not take the windows: {reason}. What was counted stays counted; when it is repaired, run the same command again"
            ),
        })
    }

    /// Reads the windows back, sorted by entity, resource, window kind and start as texts.
    pub(super) async fn read(
        &self,
        windows: &HashSet<ItemKey>,
    ) -> Result<Vec<UsageWindow>, CliError> {
        let keys: Vec<_> = windows.iter().cloned().collect();
        let usages = self.reader.usage_at(&keys).await;
        let mut usages = usages.map_err(|error| self.unreadable(&chain(&error)))?;
        if usages.len() < windows.len() {
            let missing = windows.len() - usages.len();
            return Err(self.unreadable(&format!("{missing} of {} do not exist", windows.len())));
        }
        // A window whose records all went to quarantine holds only its watermark.
        usages.retain(|usage| usage.events > 0);
        usages.sort_by_cached_key(sort_key);
        Ok(usages)
    }

    fn unreadable(&self, why: &dyn std::fmt::Display) -> CliError {
        let table = &self.table;
        CliError::Store(format!(
            "the windows were written but cannot be read back from {table}: {why}"
        ))
    }

    pub(super) async fn close(self) -> Result<(), CliError> {
        match self.engine {
            Some(engine) => engine.stop().await.map_err(|error| CliError::Store(chain(&error))),
            None => Ok(()),
        }
    }
}

/// The stream of a table that ends with the command has no reader, and each write would enlarge it.
async fn without_stream(client: &Client) -> Result<(), CliError> {
    let none = StreamSpecification::builder().stream_enabled(false).build();
    let none = none.map_err(|error| CliError::Store(error.to_string()))?;
    let update = client.update_table().table_name(EMBEDDED_TABLE).stream_specification(none);
    let updated = update.send().await;
    updated.map_err(|error| CliError::of_sdk("UpdateTable", EMBEDDED_TABLE, &error)).map(drop)
}

/// Starts of windows sort as their texts do.
fn sort_key(usage: &UsageWindow) -> (EntityId, Resource, String, i64) {
    let UsageWindow { entity, resource, window, .. } = usage;
    (entity.clone(), resource.clone(), window.kind().to_string(), window.start_s())
}
