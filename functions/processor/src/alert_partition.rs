//! The thresholds in the table, read at most once a minute. If the processor has an outbox, the
//! same read returns the alerts that wait for their delivery.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::query::builders::QueryFluentBuilder;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity};
use serde_dynamo::Item;
use sluicegate_core::keys::{self, KeyRange, SortKeys};
use sluicegate_core::{AlertRules, AlertSettings, ItemError, OutboxEntry};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::outbox::Outbox;
use crate::settings::Settings;
use crate::write_error::WriteError;

/// The time for which thresholds that were read are used.
const MAX_AGE: Duration = Duration::from_secs(60);

/// A read ends with the page that brings it to this many waiting alerts. Without an end, a
/// destination that fails could make every read longer.
const WAITING_READ: usize = 1_000;

/// The thresholds of a processor's table, and the time of the read that found them and the waiting
/// alerts. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct AlertPartition(Arc<Mutex<Option<Loaded>>>);

#[derive(Debug)]
struct Loaded {
    at: Instant,
    rules: Arc<AlertRules>,
}

impl AlertPartition {
    /// Reads the partition of alerts if the last read is a minute old, and returns the thresholds.
    /// Callers that come during a read wait for it. A read also replaces the waiting alerts of the
    /// outbox, if there is one: some callers need only that. If a read was not complete, the next
    /// one comes as soon as all alerts that it found are closed.
    pub(crate) async fn refresh(
        &self,
        client: &Client,
        settings: &Settings,
        outbox: Option<&Outbox>,
        deadline: Instant,
    ) -> Result<Arc<AlertRules>, WriteError> {
        let mut loaded = self.0.lock().await;
        // True if the last read was not complete, and all alerts that it found are closed. The
        // writes that closed them are so recent that only a consistent read is sure to show them.
        let reads_on = outbox.is_some_and(Outbox::must_read_on);
        if let Some(Loaded { at, rules }) = &*loaded
            && at.elapsed() < MAX_AGE
            && !reads_on
        {
            return Ok(Arc::clone(rules));
        }
        let at = Instant::now();
        let rules = Arc::new(read(client, settings, outbox, reads_on, deadline).await?);
        *loaded = Some(Loaded { at, rules: Arc::clone(&rules) });
        Ok(rules)
    }
}

async fn read(
    client: &Client,
    settings: &Settings,
    outbox: Option<&Outbox>,
    is_consistent: bool,
    deadline: Instant,
) -> Result<AlertRules, WriteError> {
    let mut backoff = Backoff::until(deadline);
    let range = outbox.map_or_else(KeyRange::alert_settings, |_| KeyRange::alerts());
    let (mut start, mut found, mut waiting) = (None, Vec::new(), Vec::new());
    loop {
        let query = query(client, settings, range.clone(), start.clone());
        match read_page(query.consistent_read(is_consistent), deadline).await {
            Ok(page) => {
                found.extend(page.settings);
                waiting.extend(page.waiting);
                start = page.next;
                // The settings come first.
                if start.is_none() || waiting.len() >= WAITING_READ {
                    if let Some(outbox) = outbox {
                        outbox.learn_read(waiting, start.is_none());
                    }
                    return Ok(found.into_iter().collect());
                }
            }
            Err(error @ WriteError::Transient { .. }) => {
                if !backoff.pause().await {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

struct Page {
    settings: Vec<AlertSettings>,
    waiting: Vec<OutboxEntry>,
    next: Option<HashMap<String, AttributeValue>>,
}

fn query(
    client: &Client,
    settings: &Settings,
    range: KeyRange,
    start: Option<HashMap<String, AttributeValue>>,
) -> QueryFluentBuilder {
    let KeyRange { partition, sort, .. } = range;
    let request = client
        .query()
        .table_name(&settings.table)
        .expression_attribute_names("#n0", keys::PK)
        .expression_attribute_values(":v0", AttributeValue::S(partition))
        .expression_attribute_names("#n1", keys::SK)
        .return_consumed_capacity(ReturnConsumedCapacity::Total)
        .set_exclusive_start_key(start);
    match sort {
        SortKeys::Prefix(prefix) => request
            .key_condition_expression("#n0 = :v0 AND begins_with(#n1, :v1)")
            .expression_attribute_values(":v1", AttributeValue::S(prefix)),
        SortKeys::Between(first, last) => request
            .key_condition_expression("#n0 = :v0 AND #n1 BETWEEN :v1 AND :v2")
            .expression_attribute_values(":v1", AttributeValue::S(first))
            .expression_attribute_values(":v2", AttributeValue::S(last)),
    }
}

async fn read_page(request: QueryFluentBuilder, deadline: Instant) -> Result<Page, WriteError> {
    let output = match tokio::time::timeout_at(deadline, request.send()).await {
        Err(_) => return Err(WriteError::out_of_time()),
        // A person must look at an invalid query.
        Ok(Err(error)) => return Err(WriteError::of(&error).invalid_as_needs_operator()),
        Ok(Ok(output)) => output,
    };
    let (Some(items), Some(_)) = (output.items, output.consumed_capacity) else {
        return Err(WriteError::empty_answer());
    };
    let items: Vec<_> = items.into_iter().map(serde_dynamo::Item::from).collect();
    let settings = readable(&items, AlertSettings::from_item);
    let waiting = readable(&items, OutboxEntry::from_item);
    Ok(Page { settings, waiting, next: output.last_evaluated_key })
}

/// The values of the items that have one. A broken item is logged and left out.
fn readable<T>(items: &[Item], from_item: fn(&Item) -> Result<Option<T>, ItemError>) -> Vec<T> {
    let values = items.iter().filter_map(|item| {
        from_item(item).unwrap_or_else(|error| {
            tracing::error!(%error, item = ?item.get(keys::SK), "this item is not readable");
            None
        })
    });
    values.collect()
}
