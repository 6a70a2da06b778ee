//! Prints thresholds, and the entries of the outbox.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use sluicegate_core::{AlertSettings, EpochMillis, OutboxEntry, OutboxState};

use crate::limits::name;
use crate::options::Options;
use crate::output;

#[derive(Serialize)]
struct Shown {
    level: String,
    /// By limit, as `set` reads them.
    thresholds: BTreeMap<String, String>,
}

impl Shown {
    fn of(stored: &AlertSettings) -> Self {
        let lists = stored.thresholds.iter();
        let thresholds = lists.map(|(limit, list)| (limit.to_string(), list.text(limit)));
        Self { level: name(&stored.scope), thresholds: thresholds.collect() }
    }
}

/// Shows thresholds, or says `none`.
pub(super) fn settings(stored: &[AlertSettings], options: &Options, none: &str) -> io::Result<()> {
    let stored = stored.iter().filter(|stored| !stored.thresholds.is_empty());
    let shown: Vec<_> = stored.map(Shown::of).collect();
    if options.is_json() {
        return output::json(&shown);
    }
    if shown.is_empty() {
        return output::line(none);
    }
    let rows = shown.iter().flat_map(|Shown { level, thresholds }| {
        let lists = thresholds.iter();
        lists.map(|(limit, list)| vec![level.clone(), limit.clone(), list.clone()])
    });
    output::line(&output::table(&["level", "limit", "thresholds"], rows, &[]))
}

#[derive(Serialize)]
struct Entry {
    id: String,
    state: &'static str,
    entity: String,
    resource: String,
    limit: String,
    window: String,
    start: String,
    threshold: String,
    /// The sum of the window when it was found at the threshold, in millitokens.
    sum_milli: i128,
    /// The amount of the calendar limit at that time, in millitokens.
    amount_milli: Option<i64>,
    time: String,
    /// Failed deliveries of an open entry.
    attempts: Option<u32>,
    /// The time from which an open entry is delivered again, after a failed delivery.
    next_attempt: Option<String>,
    reason: Option<String>,
}

impl Entry {
    fn of(entry: &OutboxEntry) -> Self {
        let OutboxEntry { alert, state, .. } = entry;
        let (state, attempts, next_at) = match state {
            OutboxState::Open { attempts, next_at } => ("open", Some(*attempts), Some(*next_at)),
            OutboxState::Sent => ("sent", None, None),
            OutboxState::Failed => ("failed", None, None),
        };
        let next_at = next_at.filter(|_| attempts.is_some_and(|attempts| attempts > 0));
        Self {
            id: alert.id().to_string(),
            state,
            entity: alert.bucket.entity.to_string(),
            resource: alert.bucket.resource.to_string(),
            limit: alert.limit.to_string(),
            window: alert.window.kind().to_string(),
            start: alert.window.start_text(),
            threshold: alert.threshold.show(&alert.limit).to_string(),
            sum_milli: alert.sum_milli,
            amount_milli: alert.amount.map(|amount| amount.get()),
            time: entry.at.rfc3339(),
            attempts,
            next_attempt: next_at.map(EpochMillis::rfc3339),
            reason: entry.reason.clone(),
        }
    }
}

pub(super) fn outbox(entries: &[&OutboxEntry], options: &Options) -> io::Result<()> {
    let shown: Vec<_> = entries.iter().map(|entry| Entry::of(entry)).collect();
    if options.is_json() {
        return output::json(&shown);
    }
    if shown.is_empty() {
        return output::line("the outbox is empty");
    }
    let rows = shown.into_iter().map(|entry| {
        let sum = output::amount(&entry.limit, entry.sum_milli);
        let window = format!("{} from {}", entry.window, entry.start);
        let state = match entry.next_attempt {
            Some(next) => format!("{}, again at {next}", entry.state),
            None => entry.state.to_owned(),
        };
        vec![
            entry.time,
            state,
            entry.entity,
            entry.resource,
            format!("{} {}", entry.limit, entry.threshold),
            window,
            sum,
            entry.reason.unwrap_or_default(),
        ]
    });
    let header = ["time", "state", "entity", "resource", "threshold", "window", "sum", "reason"];
    output::line(&output::table(&header, rows, &[6]))
}
