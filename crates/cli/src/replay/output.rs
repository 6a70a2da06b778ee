//! Printing the windows: a table for people, JSON for scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use serde::Serialize;
use sluicegate_core::{EntityId, LimitName, Resource, UsageWindow};
use sluicegate_processor::Quarantined;

use super::{Output, Replayed};
use crate::error::say;

/// Columns before the limits.
const FIXED: [&str; 4] = ["entity", "resource", "window", "start (UTC)"];

#[derive(Serialize)]
struct JsonWindow<'a> {
    entity: &'a str,
    resource: &'a str,
    window: &'a str,
    start: String,
    consumed_milli: BTreeMap<&'a str, i128>,
    events: u64,
}

pub(super) fn windows(windows: &[UsageWindow], output: Output) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match output {
        Output::Table => writeln!(out, "{}", tables(windows)),
        Output::Json => {
            let windows: Vec<_> = windows.iter().map(JsonWindow::from).collect();
            serde_json::to_writer_pretty(&mut out, &windows)?;
            writeln!(out)
        }
    }
}

impl<'a> From<&'a UsageWindow> for JsonWindow<'a> {
    fn from(usage: &'a UsageWindow) -> Self {
        Self {
            entity: usage.entity.as_str(),
            resource: usage.resource.as_str(),
            window: usage.window.kind().as_str(),
            start: usage.window.start_text(),
            consumed_milli: usage.consumed_milli.iter().map(|(l, n)| (l.as_str(), *n)).collect(),
            events: usage.events,
        }
    }
}

/// A rule under the header and nothing else.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Limits that are shown side by side.
type Columns<'a> = BTreeSet<&'a LimitName>;

/// One table, or several where buckets have different limits: forty columns, most of them empty,
/// could not be read.
fn tables(windows: &[UsageWindow]) -> String {
    if windows.is_empty() {
        return "no usage: no record of the input consumed anything".to_owned();
    }
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

/// The largest of the sets that have all of `limits`.
fn widest<'s, 'a>(
    of_bucket: &'s BTreeMap<(&EntityId, &Resource), Columns<'a>>,
    limits: &'s Columns<'a>,
) -> &'s Columns<'a> {
    let wider = of_bucket.values().filter(|set| set.is_superset(limits));
    wider.max_by_key(|set| (set.len(), *set)).unwrap_or(limits)
}

fn table(limits: &Columns<'_>, rows: &[&UsageWindow]) -> String {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(FIXED.into_iter().chain(limits.iter().map(|l| l.as_str())).chain(["events"]));
    for usage in rows {
        let mut row = vec![
            usage.entity.to_string(),
            usage.resource.to_string(),
            usage.window.kind().to_string(),
            usage.window.start_text(),
        ];
        for limit in limits {
            row.push(usage.consumed_milli.get(*limit).map_or("-".to_owned(), |n| tokens(*n)));
        }
        row.push(usage.events.to_string());
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(FIXED.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// Millitokens as tokens, with as many decimals as there are: `1240`, `0.5`, `-3.025`.
fn tokens(milli: i128) -> String {
    let sign = if milli < 0 { "-" } else { "" };
    let milli = milli.unsigned_abs();
    let (whole, rest) = (milli / 1_000, milli % 1_000);
    if rest == 0 {
        return format!("{sign}{whole}");
    }
    let decimals = format!("{rest:03}");
    format!("{sign}{whole}.{}", decimals.trim_end_matches('0'))
}

#[derive(Serialize)]
struct JsonQuarantined<'a> {
    quarantined: String,
    reason: &'a str,
}

pub(super) fn quarantined(entry: &Quarantined, output: Output) {
    let key = entry.key.sk();
    match output {
        Output::Table => say(&format!("quarantined {key}: {}", entry.reason)),
        Output::Json => {
            let line = JsonQuarantined { quarantined: key, reason: &entry.reason };
            say(&serde_json::to_string(&line).unwrap_or_default());
        }
    }
}

pub(super) fn summary(replayed: &Replayed, windows: usize, files: usize) {
    say(&format!(
        "{} from {}: {}, {} duplicates dropped, {} quarantined, {} write units",
        counted(replayed.records, "record"),
        counted(files as u64, "file"),
        counted(windows as u64, "window"),
        replayed.duplicates,
        replayed.quarantined.len(),
        replayed.write_units,
    ));
}

fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_as_many_decimals_as_there_are() {
        let cases = [
            (0, "0"),
            (1_240_000, "1240"),
            (500, "0.5"),
            (-3_025, "-3.025"),
            (-1, "-0.001"),
            (10, "0.01"),
        ];
        for (milli, shown) in cases {
            assert_eq!(tokens(milli), shown);
        }
    }
}
