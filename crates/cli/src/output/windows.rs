//! Usage windows as tables and as JSON, the same for every command that prints some.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluicegate_core::{EntityId, LimitName, Resource, UsageWindow};

/// Columns before the limits.
const FIXED: [&str; 4] = ["entity", "resource", "window", "start (UTC)"];

/// One window in the form for scripts.
#[derive(Serialize)]
pub(crate) struct JsonWindow<'a> {
    entity: &'a str,
    resource: &'a str,
    window: String,
    start: String,
    consumed_milli: BTreeMap<&'a str, i128>,
    events: u64,
}

impl<'a> From<&'a UsageWindow> for JsonWindow<'a> {
    fn from(usage: &'a UsageWindow) -> Self {
        Self {
            entity: usage.entity.as_str(),
            resource: usage.resource.as_str(),
            window: usage.window.kind().to_string(),
            start: usage.window.start_text(),
            consumed_milli: usage.consumed_milli.iter().map(|(l, n)| (l.as_str(), *n)).collect(),
            events: usage.events,
        }
    }
}

/// Prints windows as a JSON array.
pub(crate) fn json(windows: &[UsageWindow]) -> std::io::Result<()> {
    super::json(&windows.iter().map(JsonWindow::from).collect::<Vec<_>>())
}

/// Limits that are shown side by side.
type Columns<'a> = BTreeSet<&'a LimitName>;

/// One table, or several if buckets have different limits: a table of forty columns, most of them
/// empty, would be unreadable.
pub(crate) fn tables(windows: &[UsageWindow]) -> String {
    let mut of_bucket: BTreeMap<(&EntityId, &Resource), Columns<'_>> = BTreeMap::new();
    for usage in windows {
        let limits = of_bucket.entry((&usage.entity, &usage.resource)).or_default();
        limits.extend(usage.consumed_milli.keys());
    }
    let mut tables: Vec<(Columns<'_>, Vec<&UsageWindow>)> = Vec::new();
    for usage in windows {
        let columns = widest(&of_bucket, &of_bucket[&(&usage.entity, &usage.resource)]);
        match tables.iter_mut().find(|(known, _)| known == columns) {
            Some((_, rows)) => rows.push(usage),
            None => tables.push((columns.clone(), vec![usage])),
        }
    }
    let tables: Vec<_> = tables.iter().map(|(columns, rows)| table(columns, rows)).collect();
    tables.join("\n\n")
}

/// The largest of the sets that contain all of `limits`.
fn widest<'s, 'a>(
    of_bucket: &'s BTreeMap<(&EntityId, &Resource), Columns<'a>>,
    limits: &'s Columns<'a>,
) -> &'s Columns<'a> {
    let wider = of_bucket.values().filter(|set| set.is_superset(limits));
    wider.max_by_key(|set| (set.len(), *set)).unwrap_or(limits)
}

fn table(limits: &Columns<'_>, rows: &[&UsageWindow]) -> String {
    let names = limits.iter().map(|limit| limit.as_str());
    let header: Vec<&str> = FIXED.into_iter().chain(names).chain(["events"]).collect();
    let rows = rows.iter().map(|usage| {
        let mut row = vec![
            usage.entity.to_string(),
            usage.resource.to_string(),
            usage.window.kind().to_string(),
            usage.window.start_text(),
        ];
        for limit in limits {
            row.push(
                usage
                    .consumed_milli
                    .get(*limit)
                    .map_or("-".to_owned(), |n| limit.show(*n).to_string()),
            );
        }
        row.push(usage.events.to_string());
        row
    });
    let right: Vec<usize> = (FIXED.len()..header.len()).collect();
    super::table(&header, rows, &right)
}
