//! Reads every usage window and every quarantined record of a test's table.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use sluicegate_core::keys::{ItemKey, PK, SK};
use sluicegate_core::{OutboxEntry, UsageWindow, WindowKind};

use crate::history::{Usage, Usages};

type Attributes = std::collections::HashMap<String, AttributeValue>;

/// All hour and day windows of a table.
pub async fn read_usages(client: &Client, table: &str) -> Usages {
    let mut usages = BTreeMap::new();
    for item in scan(client, table).await {
        let item = serde_dynamo::Item::from(item);
        let Some(window) = UsageWindow::from_item(&item).expect("a readable window") else {
            continue;
        };
        let kind = match window.window.kind() {
            WindowKind::Hour => "hour",
            WindowKind::DAY => "day",
            other => panic!("a {other} window was not asked for"),
        };
        let (entity, resource) = (window.entity.to_string(), window.resource.to_string());
        let consumed = window.consumed_milli.into_iter();
        let usage = Usage {
            consumed_milli: consumed.map(|(limit, milli)| (limit.to_string(), milli)).collect(),
            events: window.events,
        };
        usages.insert((entity, resource, kind, window.window.start_s()), usage);
    }
    usages
}

/// The entries of a table's outbox, open and closed.
pub async fn read_outbox(client: &Client, table: &str) -> Vec<OutboxEntry> {
    let items = scan(client, table).await.into_iter().map(serde_dynamo::Item::from);
    items.filter_map(|item| OutboxEntry::from_item(&item).expect("a readable entry")).collect()
}

/// The quarantine entries of a table by sort key.
pub async fn read_quarantine(client: &Client, table: &str) -> BTreeMap<String, Attributes> {
    let items = scan(client, table).await.into_iter();
    items
        .filter(|item| matches!(key(item), Some(ItemKey::Quarantine(_))))
        .map(|item| (item[SK].as_s().expect("a sort key").clone(), item))
        .collect()
}

fn key(item: &Attributes) -> Option<ItemKey> {
    let text = |name: &str| item[name].as_s().expect("a key of type S").as_str();
    ItemKey::parse(text(PK), text(SK)).ok().flatten()
}

/// Every item of a table.
pub async fn scan(client: &Client, table: &str) -> Vec<Attributes> {
    let mut items = Vec::new();
    let mut start = None;
    loop {
        let request = client.scan().table_name(table).consistent_read(true);
        let page = request.set_exclusive_start_key(start).send().await.expect("a scan");
        items.extend(page.items.unwrap_or_default());
        start = page.last_evaluated_key;
        if start.is_none() {
            return items;
        }
    }
}
