//! Finding, reading and checking event files.
//!
//! All of it is read once and held, so that a pipe can be replayed, nothing is written before
//! everything is checked, and records can be brought into stream order. A file holds any number of
//! JSON values: events, records, or both, one a line or spread over many.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::order;
use crate::error::CliError;

const EXTENSIONS: [&str; 3] = ["json", "jsonl", "ndjson"];

/// The records of all files.
pub(super) struct Input {
    /// In the order given, unless that was not stream order.
    pub(super) records: Vec<Box<RawValue>>,
    pub(super) files: usize,
    /// Records that stood behind later ones of their item, and were moved before them.
    pub(super) moved: usize,
}

impl Input {
    /// Resolves files and folders and reads them.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Self, CliError> {
        let files = find(paths)?;
        let mut records = Vec::new();
        for file in &files {
            read_file(file, &mut records)?;
        }
        let moved = order::restore(&mut records);
        Ok(Self { records, files: files.len(), moved })
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

fn event_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
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

fn read_file(path: &Path, to: &mut Vec<Box<RawValue>>) -> Result<(), CliError> {
    let bytes = fs::read(path).map_err(|error| bad(path, &error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        bad(path, &format!("not UTF-8 text, at byte {at}"))
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    if text.trim().is_empty() {
        return Err(bad(path, "the file is empty: a stream event was expected"));
    }
    let records = records(text).map_err(|(at, why)| {
        let (line, column) = position(text, at);
        CliError::BadInput(format!("{}:{line}:{column}: {why}", path.display()))
    })?;
    to.extend(records.into_iter().map(ToOwned::to_owned));
    Ok(())
}

fn bad(path: &Path, why: &str) -> CliError {
    CliError::BadInput(format!("{}: {why}", path.display()))
}

/// The two shapes that a value in a file may have.
#[derive(Deserialize)]
struct Shape<'a> {
    #[serde(borrow, rename = "Records")]
    records: Option<&'a RawValue>,
    #[serde(borrow)]
    dynamodb: Option<&'a RawValue>,
}

const EXPECTED: &str =
    "expected a DynamoDB stream event ({\"Records\": [...]}) or one of its records";

/// The records in `text`, or the byte offset of what is wrong and why.
fn records(text: &str) -> Result<Vec<&RawValue>, (usize, String)> {
    let mut found = Vec::new();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    loop {
        let raw = match values.next() {
            None => return Ok(found),
            Some(Ok(raw)) => raw,
            Some(Err(error)) => {
                return Err((
                    offset(text, error.line(), error.column()),
                    format!("not JSON: {}", plain(&error)),
                ));
            }
        };
        let at = place(text, raw);
        let not_an_event = |_| (at, format!("not an event: {EXPECTED}"));
        let shape: Shape<'_> = serde_json::from_str(raw.get()).map_err(not_an_event)?;
        match (shape.records, shape.dynamodb) {
            (Some(list), _) => {
                let list: Vec<&RawValue> =
                    serde_json::from_str(list.get()).map_err(not_an_event)?;
                for record in list {
                    check_record(text, record)?;
                    found.push(record);
                }
            }
            (None, Some(_)) => {
                check_record(text, raw)?;
                found.push(raw);
            }
            (None, None) => return Err((at, format!("not an event: {EXPECTED}"))),
        }
    }
}

/// A record of another source (S3, SQS, ...) is bad input; a broken DynamoDB record is not, it goes
/// to quarantine as it would in the Lambda.
fn check_record(text: &str, record: &RawValue) -> Result<(), (usize, String)> {
    let shape = serde_json::from_str::<Shape<'_>>(record.get());
    match shape.ok().and_then(|shape| shape.dynamodb) {
        Some(change) if change.get().starts_with('{') => Ok(()),
        _ => Err((
            place(text, record),
            "not a DynamoDB stream record: it has no \"dynamodb\" object".to_owned(),
        )),
    }
}

/// Where in `text` a value that borrows from it begins.
fn place(text: &str, raw: &RawValue) -> usize {
    (raw.get().as_ptr() as usize).saturating_sub(text.as_ptr() as usize)
}

/// Line and column, both from 1, of a byte offset.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
    (line, column)
}

/// The byte offset of a line and column as `serde_json` reports them.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    start + column.saturating_sub(1)
}

/// The message without the position, which is given in the usual form.
fn plain(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"eventName":"INSERT","dynamodb":{"SequenceNumber":"1"}}"#;

    fn found(text: &str) -> Result<usize, (usize, String)> {
        records(text).map(|records| records.len())
    }

    #[test]
    fn events_records_and_lines_are_all_read() {
        assert_eq!(found(&format!("{{\"Records\":[{RECORD},\n{RECORD}]}}")), Ok(2));
        assert_eq!(found(&format!("{RECORD}\n{RECORD}\n\n{RECORD}")), Ok(3));
        assert_eq!(found(&format!("{RECORD}\n{{\"Records\":[{RECORD}]}}\n")), Ok(2));
        assert_eq!(found("{\"Records\": []}"), Ok(0));
    }

    #[test]
    fn what_is_wrong_is_found_where_it_stands() {
        let cut = format!("{RECORD}\n{{\"Records\": [");
        let (at, why) = found(&cut).unwrap_err();
        assert_eq!((position(&cut, at).0, why.as_str()), (2, "not JSON: EOF while parsing a list"));
        for text in ["[1]", "{}", "\"x\"", "{\"Records\": {}}", "{\"records\": []}"] {
            assert_eq!(found(text).unwrap_err().0, 0, "{text}");
        }
        let other = format!("{{\"Records\":[{RECORD},\n {{\"s3\":{{}}}}]}}");
        let (at, why) = found(&other).unwrap_err();
        assert_eq!(position(&other, at), (2, 2));
        assert!(why.contains("\"dynamodb\""), "{why}");
    }

    #[test]
    fn a_broken_record_of_the_right_source_is_no_bad_input() {
        assert_eq!(found(r#"{"dynamodb":{"Keys":7}}"#), Ok(1));
    }
}
