//! Exports that end anywhere and are repeated.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use futures_util::{FutureExt as _, stream};
use sluicegate::types::{EpochMillis, Window, WindowKind};

use super::*;
use crate::usage::export::folder::Folder;
use crate::usage::export::layout::{Layout, Settings};

const TABLE: &str = "arn:aws:dynamodb:eu-west-1:111111111111:table/table";
/// 2026-11-04T12:00:00Z.
const NOW: i64 = 1_793_793_600_000;
const ENTITIES: [&str; 2] = ["a", "b"];
/// Windows of the three closed days.
const WINDOWS: usize = 6;

fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

fn usage(entity: &str, window: Window) -> UsageWindow {
    let limits = [("rpm", 1_000), ("tpm", i128::from(window.start_s()))];
    let limits = limits.map(|(limit, milli)| (LimitName::new(limit).unwrap(), milli));
    UsageWindow {
        entity: entity.parse().unwrap(),
        resource: "r".parse().unwrap(),
        window,
        consumed_milli: limits.into(),
        events: 2,
        expires_at_s: None,
    }
}

/// Each day has a window of each entity, and the read of the window after `most` fails.
fn exporter(most: usize) -> Exporter<impl Fn(&WindowSpan) -> Windows> {
    let read = Cell::new(0);
    let days = Days::new(WindowKind::DAY, "2026-11-01".parse().unwrap(), None, at(NOW)).unwrap();
    Exporter {
        read: move |span: &WindowSpan| {
            let (day, _) = span.ends().unwrap();
            let mut windows = Vec::new();
            for entity in ENTITIES {
                if read.get() == most {
                    let table = "table".to_owned();
                    windows.push(Err(ReadError::LeftOut { table, items: 1 }));
                    break;
                }
                read.set(read.get() + 1);
                windows.push(Ok(usage(entity, day)));
            }
            stream::iter(windows).boxed()
        },
        source: TABLE.to_owned(),
        format: Format::Csv,
        days,
        closed_s: Some(NOW / 1_000),
        now_s: NOW / 1_000,
        prices: None,
        progress: Progress::over(4),
        findings: Findings::default(),
        kept_s: None,
        empty: Vec::new(),
    }
}

fn settings(table: &str) -> Settings<'_> {
    Settings { table, format: Format::Csv, resources: None, prices: None }
}

/// One export to a folder, as one run of the command makes it.
fn export(root: &Path, most: usize) -> Result<Written, CliError> {
    let (settings, layout) = (settings(TABLE), Layout::new(WindowKind::DAY, Format::Csv));
    let folder = Place::Folder(Folder::open(root, layout, &settings)?);
    exporter(most).write_folder(&folder).now_or_never().unwrap()
}

/// The files under a folder, with their bytes, sorted.
fn files(root: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            let inner = super::tests::files(&path).into_iter();
            files.extend(inner.map(|(file, bytes)| (format!("{name}/{file}"), bytes)));
        } else {
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    files.sort();
    files
}

#[test]
fn an_export_that_ended_anywhere_is_completed_to_the_same_bytes() {
    let whole = tempfile::tempdir().unwrap();
    let written = export(whole.path(), usize::MAX).unwrap();
    assert_eq!(written, Written { files: 3, open: 1, rows: 12, ..Written::default() });
    let expected = files(whole.path());
    let names: Vec<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
    let part = |day| format!("kind=day/date=2026-11-0{day}/part-0.csv");
    assert_eq!(names, ["_sluicegate-export.json", &part(1), &part(2), &part(3)]);
    assert!(expected[1..].iter().all(|(_, bytes)| bytes.lines().count() == 5), "{expected:?}");

    for most in 0..WINDOWS {
        let folder = tempfile::tempdir().unwrap();
        assert!(export(folder.path(), most).is_err());
        let partial = files(folder.path());
        assert!(partial.iter().all(|file| expected.contains(file)), "{most}: {partial:?}");
        assert_eq!(partial.len() - 1, most / ENTITIES.len(), "days are published one by one");
        // As a process leaves it that was killed.
        fs::write(folder.path().join(".sluicegate-new-x"), "half a row").unwrap();
        let written = export(folder.path(), usize::MAX).unwrap();
        assert_eq!((written.files + written.there, written.there), (3, most / ENTITIES.len()));
        assert_eq!(files(folder.path()), expected, "{most}");
    }
}

#[test]
fn settings_are_completed_and_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("_sluicegate-export.json");
    for length in 0..20 {
        fs::write(&settings, &format!(r#"{{"table":"{TABLE}"#)[..length]).unwrap();
        assert!(export(folder.path(), usize::MAX).is_ok());
    }
    fs::write(&settings, r#"{"table":"other""#).unwrap();
    let error = export(folder.path(), usize::MAX).unwrap_err().to_string();
    assert!(error.contains(r#"other settings: {"table":"other""#), "{error}");
}

#[test]
fn a_folder_has_one_export_at_a_time() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::new(WindowKind::DAY, Format::Csv);
    let open_of = |table| Folder::open(root.path(), layout.clone(), &settings(table));
    let open = || open_of(TABLE);
    let first = open().unwrap_or_else(|error| panic!("{error}"));
    let error = open().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("another export is writing to"), "{error}");
    drop(first);
    assert!(open().is_ok());
    let other = TABLE.replace("1111", "2222");
    let error = open_of(&other).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("other settings"), "a table of another account: {error}");
}

#[test]
fn a_day_whose_first_windows_may_have_expired_has_no_file() {
    for (kept_half_days, left_out) in [(6, 0), (5, 1), (3, 2)] {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(WindowKind::DAY, Format::Csv);
        let folder = Place::Folder(Folder::open(root.path(), layout, &settings("x")).unwrap());
        let forever = exporter(usize::MAX);
        let read = |span: &WindowSpan| {
            let windows = (forever.read)(span).map(move |window| {
                let window = window?;
                let expires_at_s = Some(window.window.end_s() + kept_half_days * 43_200);
                Ok(UsageWindow { expires_at_s, ..window })
            });
            windows.boxed()
        };
        let mut exporter = Exporter {
            read,
            source: forever.source.clone(),
            format: Format::Csv,
            days: forever.days,
            closed_s: forever.closed_s,
            now_s: forever.now_s,
            prices: None,
            progress: Progress::over(4),
            findings: Findings::default(),
            kept_s: None,
            empty: Vec::new(),
        };
        let written = exporter.write_folder(&folder).now_or_never().unwrap().unwrap();
        assert_eq!((written.left_out, exporter.findings.expired), (left_out, left_out));
        assert_eq!(written.files, 3 - left_out);
        let files = files(root.path());
        let rows: usize = files[1..].iter().map(|(_, rows)| rows.lines().count() - 1).sum();
        assert_eq!(written.rows, rows, "those of the files");
    }
}

#[test]
fn a_day_whose_windows_have_all_expired_is_told_from_one_that_can_have_none() {
    let mut exporter = exporter(usize::MAX);
    let days: Vec<Day> = exporter.days.iter().collect();
    let none = Copied::default();
    let some = Copied { windows: 1, kept_s: Some(2 * 86_400), ..Copied::default() };
    for (day, copied) in days.iter().zip([&none, &none, &some, &none]) {
        assert!(!exporter.may_miss_windows(day, copied));
    }
    // The window of the first day was kept until this midnight, that of the second until the next.
    assert_eq!(exporter.expired_days(), ["2026-11-01"]);
}
