//! Folders in Hive layout: `kind=day/date=2026-11-01/part-0.csv`, a file a day.
//!
//! A file is whole or absent, and a closed day does not change, so an export leaves the files that
//! are there alone. A record of the settings in the folder keeps files of one kind together.

use std::io;

use serde::Serialize;
use sluicegate::types::WindowKind;

use super::format::Format;
use crate::error::CliError;

/// The name of the record of the settings. Readers of data sets ignore names that begin with an
/// underscore.
pub(super) const SETTINGS: &str = "_sluicegate-export.json";

/// The settings that all files of a folder share.
#[derive(Debug, Serialize)]
pub(super) struct Settings<'a> {
    /// The ARN of the table.
    pub(super) table: &'a str,
    pub(super) format: Format,
    /// `None`: all.
    pub(super) resources: Option<Vec<&'a str>>,
    /// The currency of the prices.
    pub(super) prices: Option<&'static str>,
}

impl Settings<'_> {
    /// The record in a folder.
    pub(super) fn text(&self) -> io::Result<String> {
        let mut text = serde_json::to_string(self)?;
        text.push('\n');
        Ok(text)
    }
}

/// The error of a folder whose record, at this place, is another one.
pub(super) fn others(place: &str, found: &str) -> CliError {
    CliError::BadInput(format!(
        "{place} says that the folder has an export with other settings: {}; name another --folder",
        found.trim_end()
    ))
}

/// The names of the files in a folder.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    kind: String,
    file_name: String,
}

impl Layout {
    pub(super) fn new(kind: WindowKind, format: Format) -> Self {
        // A time zone has a slash in its name.
        let kind = format!("kind={}", kind.to_string().replace('/', "%2F"));
        Self { kind, file_name: format!("part-0.{}", format.extension()) }
    }

    /// The file of a day, below the folder.
    pub(super) fn file(&self, date: &str) -> String {
        format!("{}/date={date}/{}", self.kind, self.file_name)
    }
}
