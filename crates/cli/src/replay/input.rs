//! Finds event files, and reads and checks them.
//!
//! All input is read once, a record at a time, and copied to a temporary file. So a pipe can be
//! replayed, nothing is written before everything is checked, and records can be brought into
//! stream order. Memory holds the current record and the data of `order.rs`.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use super::order::Order;
use super::records::{Wrong, records};
use super::spool::Spool;
use crate::error::CliError;

const EXTENSIONS: [&str; 3] = ["json", "jsonl", "ndjson"];
const BUFFER_BYTES: usize = 1 << 16;

/// The records of all files.
pub(super) struct Input {
    pub(super) records: Spool,
    pub(super) order: Order,
    pub(super) files: usize,
}

impl Input {
    /// Resolves files and folders and reads them.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Self, CliError> {
        let files = find(paths)?;
        let mut records = Spool::new().map_err(|error| no_room(&error))?;
        let mut order = Order::default();
        for file in &files {
            let mut keep = |record: &str| {
                order.note(record);
                records.push(record)
            };
            read_file(file, &mut keep)?;
        }
        records.rewind()?;
        order.restore(&mut records)?;
        Ok(Self { records, order, files: files.len() })
    }
}

fn find(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for path in paths {
        let about = fs::metadata(path).map_err(|error| bad(path, &error.to_string()))?;
        if !about.is_dir() {
            files.push(path.clone());
            continue;
        }
        let found = event_files(path).map_err(|error| bad(path, &error.to_string()))?;
        if found.is_empty() {
            return Err(bad(path, "the folder has no .json, .jsonl or .ndjson file"));
        }
        files.extend(found);
    }
    Ok(files)
}

fn event_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let extension = extension.map(str::to_ascii_lowercase).unwrap_or_default();
        if path.is_file() && EXTENSIONS.contains(&extension.as_str()) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn bad(path: &Path, why: &str) -> CliError {
    CliError::BadInput(format!("{}: {why}", path.display()))
}

/// Passes every record of a file to `keep`.
fn read_file(path: &Path, keep: &mut dyn FnMut(&str) -> io::Result<()>) -> Result<(), CliError> {
    let file = File::open(path).map_err(|error| bad(path, &error.to_string()))?;
    records(BufReader::with_capacity(BUFFER_BYTES, file), keep).map_err(|wrong| match wrong {
        Wrong::At(place, why) => {
            CliError::BadInput(format!("{}:{}:{}: {why}", path.display(), place.line, place.column))
        }
        Wrong::Empty => bad(path, "the file is empty: a stream event was expected"),
        Wrong::Io(error) => bad(path, &error.to_string()),
        Wrong::Spool(error) => no_room(&error),
    })
}

fn no_room(error: &io::Error) -> CliError {
    CliError::Store(format!(
        "the records cannot be copied to a temporary file: {error}; make room, or name another folder by TMPDIR"
    ))
}
