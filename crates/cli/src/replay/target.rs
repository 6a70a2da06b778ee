//! Where the windows go: an engine inside this process, or a table.

use std::collections::{HashMap, HashSet};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::DisplayErrorContext;
use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use sluicegate_core::UsageWindow;
use sluicegate_core::keys::{self, ItemKey};
use sluicegate_local::{EmbeddedEngine, Storage};

use crate::error::CliError;

/// Table inside the engine.
const EMBEDDED_TABLE: &str = "sluicegate-limits";
/// Most keys of one BatchGetItem.
const KEYS_PER_READ: usize = 100;

pub(super) struct Target {
    client: Client,
    table: String,
    engine: Option<EmbeddedEngine>,
}

impl Target {
    /// Opens `table` as the AWS environment says, or starts an engine with a fresh one.
    pub(super) async fn open(
        table: Option<&str>,
        endpoint_url: Option<&str>,
    ) -> Result<Self, CliError> {
        let Some(table) = table else { return Self::embedded().await };
        let mut config = sluicegate_processor::sdk_config().await.into_builder();
        if let Some(url) = endpoint_url {
            config = config.endpoint_url(url);
        }
        let client = sluicegate_processor::client(&config.build());
        Ok(Self { client, table: table.to_owned(), engine: None })
    }

    async fn embedded() -> Result<Self, CliError> {
        let failed = |error: sluicegate_local::Error| {
            CliError::Store(format!("the embedded engine failed: {error}"))
        };
        let engine = EmbeddedEngine::start(Storage::Memory).await.map_err(failed)?;
        let client = sluicegate_local::client::dynamodb(&engine.endpoint_url());
        sluicegate_local::table::create_table(&client, EMBEDDED_TABLE).await.map_err(failed)?;
        Ok(Self { client, table: EMBEDDED_TABLE.to_owned(), engine: Some(engine) })
    }

    pub(super) fn table(&self) -> &str {
        &self.table
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Reads the windows back, sorted by entity, resource, window kind and start as texts.
    pub(super) async fn read(
        &self,
        windows: &HashSet<ItemKey>,
    ) -> Result<Vec<UsageWindow>, CliError> {
        let keys: Vec<_> = windows.iter().map(key).collect();
        let mut usages = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(KEYS_PER_READ) {
            let mut pending = Some(chunk.to_vec());
            while let Some(keys) = pending.take() {
                let wanted = KeysAndAttributes::builder()
                    .set_keys(Some(keys))
                    .consistent_read(true)
                    .build()
                    .map_err(|error| CliError::Store(error.to_string()))?;
                let answer = self
                    .client
                    .batch_get_item()
                    .request_items(&self.table, wanted)
                    .send()
                    .await
                    .map_err(|error| self.unreadable(&DisplayErrorContext(error)))?;
                for item in
                    answer.responses.unwrap_or_default().remove(&self.table).unwrap_or_default()
                {
                    let item = serde_dynamo::Item::from(item);
                    let usage =
                        UsageWindow::from_item(&item).map_err(|error| self.unreadable(&error))?;
                    usages.extend(usage);
                }
                pending = answer
                    .unprocessed_keys
                    .unwrap_or_default()
                    .remove(&self.table)
                    .map(|left| left.keys)
                    .filter(|left| !left.is_empty());
            }
        }
        usages.sort_by_cached_key(|u| {
            (u.entity.clone(), u.resource.clone(), u.window.kind().as_str(), u.window.start_text())
        });
        Ok(usages)
    }

    fn unreadable(&self, why: &dyn std::fmt::Display) -> CliError {
        CliError::Store(format!(
            "the windows were written but cannot be read back from {}: {why}",
            self.table
        ))
    }

    pub(super) async fn close(self) -> Result<(), CliError> {
        match self.engine {
            Some(engine) => engine.stop().await.map_err(|error| CliError::Store(error.to_string())),
            None => Ok(()),
        }
    }
}

fn key(key: &ItemKey) -> HashMap<String, AttributeValue> {
    HashMap::from([
        (keys::PK.to_owned(), AttributeValue::S(key.pk())),
        (keys::SK.to_owned(), AttributeValue::S(key.sk())),
    ])
}
