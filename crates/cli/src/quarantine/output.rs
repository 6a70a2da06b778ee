//! Prints entries of the quarantine, and the results of `replay` and `drop`.

use std::io;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use sluicegate_core::{QuarantineEntry, StreamRecord};
use sluicegate_processor::{Recounted, one_line};

use crate::error::exit;
use crate::options::Options;
use crate::output;

/// The longest reason in a table; JSON has all of it.
const REASON_CHARS: usize = 100;

#[derive(Serialize)]
struct Entry<'a> {
    id: String,
    state: &'a str,
    /// The one kind of window that lacks the record; none: all kinds lack it.
    window: Option<String>,
    reason: &'a str,
    truncated: bool,
    /// The record as it was delivered: JSON, or a text if it is not JSON.
    record: Box<RawValue>,
}

impl<'a> Entry<'a> {
    fn of(entry: &'a QuarantineEntry) -> Result<Self, serde_json::Error> {
        Ok(Self {
            id: entry.key().sk(),
            state: entry.state.as_str(),
            window: entry.id.kind.map(|kind| kind.to_string()),
            reason: &entry.reason,
            truncated: entry.is_truncated,
            record: match RawValue::from_string(entry.record.clone()) {
                Ok(json) => json,
                Err(_) => to_raw_value(&entry.record)?,
            },
        })
    }
}

pub(super) fn list(entries: &[&QuarantineEntry], options: &Options) -> io::Result<()> {
    if options.is_json() {
        let entries = entries.iter().map(|entry| Entry::of(entry));
        return output::json(&entries.collect::<Result<Vec<_>, _>>()?);
    }
    if entries.is_empty() {
        return output::line("the quarantine is empty");
    }
    let rows = entries.iter().map(|entry| {
        vec![
            entry.key().sk(),
            entry.state.as_str().to_owned(),
            item_of(entry),
            one_line(&entry.reason, REASON_CHARS),
        ]
    });
    output::line(&output::table(&["id", "state", "item", "reason"], rows, &[]))
}

/// The key of the record's item, if it has one.
fn item_of(entry: &QuarantineEntry) -> String {
    match StreamRecord::from_json(&entry.record) {
        Ok(record) => {
            let (pk, sk) = record.keys();
            format!("{pk} {sk}")
        }
        Err(_) => "-".to_owned(),
    }
}

#[derive(Serialize)]
struct Became<'a> {
    id: String,
    result: &'static str,
    reason: Option<&'a str>,
}

pub(super) fn report(
    entries: &[QuarantineEntry],
    results: &[Recounted],
    options: &Options,
) -> io::Result<ExitCode> {
    let became: Vec<_> = entries
        .iter()
        .zip(results)
        .map(|(entry, recounted)| {
            let (result, reason) = result_and_reason(recounted);
            Became { id: entry.key().sk(), result, reason }
        })
        .collect();
    let open = became.iter().filter(|became| became.reason.is_some()).count();
    if options.is_json() {
        output::json(&became)?;
    } else {
        for Became { id, result, reason } in &became {
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            output::line(&one_line(&format!("{id} {result}{reason}"), 1_000))?;
        }
        let closed = became.len() - open;
        let entries = if closed == 1 { "entry" } else { "entries" };
        output::line(&format!("{closed} {entries} closed, {open} left open"))?;
    }
    Ok(if open == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}

/// The result for an entry, and the reason if it is still open.
fn result_and_reason(recounted: &Recounted) -> (&'static str, Option<&str>) {
    match recounted {
        Recounted::Counted(_) => ("counted", None),
        Recounted::AlreadyCounted => ("counted by another delivery before, closed", None),
        Recounted::NothingToCount => ("consumed nothing, closed", None),
        Recounted::GivenUp => ("dropped", None),
        Recounted::Closed => ("was closed before", None),
        Recounted::Uncountable(reason) => ("cannot be counted", Some(reason)),
        Recounted::Undecided(reason) => ("left open", Some(reason)),
        Recounted::Failed(reason) => ("failed, try again", Some(reason)),
    }
}
