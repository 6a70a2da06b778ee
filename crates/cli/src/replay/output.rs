//! Prints the result of a replay.

use std::io::{self, Write};

use serde::Serialize;
use sluicegate_core::UsageWindow;
use sluicegate_processor::Quarantined;

use super::replay_totals::ReplayTotals;
use crate::error::say;
use crate::options::Output;
use crate::output::{self, counted};

pub(super) fn windows(windows: &[UsageWindow], format: Output) -> io::Result<()> {
    match format {
        Output::Json => output::windows::json(windows),
        _ if windows.is_empty() => {
            output::line("no usage: no record of the input consumed anything")
        }
        _ => output::line(&output::windows::tables(windows)),
    }
}

#[derive(Serialize)]
struct JsonQuarantined<'a> {
    quarantined: String,
    reason: &'a str,
}

pub(super) fn quarantined(entry: &Quarantined, format: Output) {
    let key = entry.key.sk();
    match format {
        Output::Json => {
            let line = JsonQuarantined { quarantined: key, reason: &entry.reason };
            let line = serde_json::to_string(&line).unwrap_or_default();
            let _ = writeln!(io::stderr(), "{line}");
        }
        _ => say(&format!("quarantined {key}: {}", entry.reason)),
    }
}

pub(super) fn summary(totals: &ReplayTotals, windows: usize, files: usize) {
    say(&format!(
        "{} from {}: {}, {} duplicates dropped, {} quarantined, {} write units",
        counted(totals.records, "record"),
        counted(files, "file"),
        counted(windows, "window"),
        totals.duplicates,
        totals.quarantined.len(),
        totals.write_units,
    ));
    if totals.partly_counted > 0 {
        say(&format!(
            "{} counted in some windows only: the others have counted later records, and may lack \
             these; compare the hours with their day",
            counted(usize::try_from(totals.partly_counted).unwrap_or(usize::MAX), "record"),
        ));
    }
}
