//! `usage export`: the rows of usage windows in every format, and exports that are repeated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;
use sluicegate_core::keys::ItemKey;
use sluicegate_core::{EpochMillis, WindowKind, parse_amount};

use crate::support::{Shell, on_every_engine};

pub(crate) const DAYS: &str = "--from 2026-01-28 --to 2026-02-02";

/// Counts the sample events; returns the windows of [`DAYS`] as `replay` prints them.
pub(crate) fn replayed(shell: &Shell) -> Vec<Value> {
    let events = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/events");
    let words = ["replay", events, "--table", &shell.table, "--output", "json"];
    let Value::Array(mut windows) = shell.run_words(&words).json(0) else { panic!() };
    windows.retain(|window| window["start"].as_str().unwrap() < "2026-02-02");
    windows
}

/// The amounts in millitokens by entity, resource, limit and start.
type Amounts = BTreeMap<[String; 4], i128>;

fn amounts_of_windows(windows: &[Value], kind: &str) -> Amounts {
    let mut amounts = Amounts::new();
    for window in windows.iter().filter(|window| window["window"] == kind) {
        for (limit, milli) in window["consumed_milli"].as_object().unwrap() {
            let text = |field: &str| window[field].as_str().unwrap().to_owned();
            let key = [text("entity"), text("resource"), limit.clone(), text("start")];
            amounts.insert(key, milli.as_i64().unwrap().into());
        }
    }
    amounts
}

fn amounts_of_rows(rows: &str) -> Amounts {
    let mut amounts = Amounts::new();
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        let text = |field: &str| row[field].as_str().unwrap().to_owned();
        let milli = parse_amount(&text("limit"), &text("amount")).unwrap();
        let key = [text("entity"), text("resource"), text("limit"), text("start")];
        assert_eq!(amounts.insert(key, milli), None, "{row}");
    }
    amounts
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_have_the_amounts_of_the_windows() {
    on_every_engine(async |shell| {
        let windows = replayed(shell);
        for kind in ["hour", "day"] {
            let line = format!("usage export {DAYS} --kind {kind} --format jsonl");
            let rows = shell.run(&line);
            assert_eq!(amounts_of_rows(rows.text(0)), amounts_of_windows(&windows, kind));
            assert_eq!(rows.err, format!("{} rows\n", rows.out.lines().count()));
            assert_eq!(shell.run(&line).out, rows.out);
        }
        let line = &format!("usage export {DAYS} --format jsonl --resource gpt-4");
        let mut expected = amounts_of_windows(&windows, "day");
        expected.retain(|[_, resource, ..], _| resource == "gpt-4");
        assert_eq!(amounts_of_rows(shell.run(line).text(0)), expected);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_every_format() {
    on_every_engine(async |shell| {
        replayed(shell);
        let folder = tempfile::tempdir().unwrap();
        let prices = folder.path().join("prices.json");
        let list = r#"{"currency": "USD", "models": {"search-api": [
            {"from": "2026-02-01", "input": 1, "output": 2, "per_request": "0.0125"}]}}"#;
        std::fs::write(&prices, list).unwrap();
        // The table has a random name, and each engine an account of its own.
        let described =
            shell.engine.client().describe_table().table_name(&shell.table).send().await;
        let arn = described.unwrap().table.unwrap().table_arn.unwrap();
        for format in ["csv", "jsonl", "cloudevents", "focus"] {
            let line = format!("usage export --from 2026-01-29 --to 2026-02-02 --format {format}");
            let plain = shell.run(&line);
            let shown = plain.text(0).replace(&arn, "ARN");
            insta::assert_snapshot!(format!("rows_{format}"), shown);
            // One of two amounts of a request has a price: the list begins with February.
            let line = format!("{line} --resource search-api --prices {}", prices.display());
            let priced = shell.run(&line);
            let shown = priced.text(1).replace(&arn, "ARN");
            insta::assert_snapshot!(format!("priced_{format}"), shown);
            let why = "no cost: the resource \"search-api\" has no price on 2026-01-31";
            assert!(priced.err.contains(why), "{}", priced.err);
        }
        let csv = shell.run(&format!("usage export {DAYS} --format csv")).out;
        assert_eq!(csv.matches("\r\n").count(), csv.matches('\n').count());
    })
    .await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_gets_the_rows_and_a_link_stays() {
    on_every_engine(async |shell| {
        replayed(shell);
        let line = format!("usage export {DAYS} --format csv");
        let rows = shell.run(&line).out;
        let folder = tempfile::tempdir().unwrap();
        let [pipe, link, file] = ["pipe", "link", "file"].map(|name| folder.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        shell.run(&format!("{line} --file {}", pipe.display())).text(0);
        assert!(!pipe.is_file());
        assert_eq!(reader.join().unwrap(), rows);
        let leaving = std::thread::spawn({
            let pipe = pipe.clone();
            move || drop(std::fs::File::open(pipe).unwrap())
        });
        let left = shell.run(&format!("{line} --file {}", pipe.display()));
        leaving.join().unwrap();
        assert!(left.error(6).contains("pipe: Broken pipe"), "{}", left.err);
        std::fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        shell.run(&format!("{line} --file {}", link.display())).text(0);
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), rows);
        let none = shell.run(&format!("{line} --kind week"));
        assert_eq!(none.err, "0 rows: no week window begins in these days, or all have expired\n");
        let misspelt = shell.run(&format!("{line} --resource gpt4"));
        assert_eq!(
            misspelt.err,
            "0 rows: no day window of these resources begins in these days, or all have expired\n"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cloudevents_are_valid_by_the_official_schema() {
    let schema = serde_json::from_str(include_str!("cloudevents/schema.json")).unwrap();
    let options = jsonschema::options();
    let validator = options.should_validate_formats(true).build(&schema).unwrap();
    on_every_engine(async |shell| {
        replayed(shell);
        let events = shell.run(&format!("usage export {DAYS} --format cloudevents"));
        assert!(events.text(0).lines().count() > 10);
        for event in events.out.lines() {
            let mut event: Value = serde_json::from_str(event).unwrap();
            assert!(validator.is_valid(&event), "{event}");
            event["time"] = Value::from("yesterday");
            assert!(!validator.is_valid(&event), "the schema checks something");
        }
    })
    .await;
}

/// The files of a folder, read by pyarrow and by DuckDB, have the rows of the other formats.
#[cfg(feature = "parquet")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs `cargo xtask engines parquet-readers`"]
async fn parquet_is_read_by_pyarrow_and_duckdb() {
    on_every_engine(async |shell| {
        replayed(shell);
        let folder = tempfile::tempdir().unwrap();
        let prices = folder.path().join("prices.json");
        let list = r#"{"currency": "USD", "models": {"search-api": [
            {"from": "2026-01-01", "input": 1, "output": 2, "per_request": "0.0125"}]}}"#;
        std::fs::write(&prices, list).unwrap();
        let root = folder.path().join("usage");
        let line = format!("usage export {DAYS} --prices {} --format", prices.display());
        let rows = shell.run(&format!("{line} jsonl"));
        shell.run(&format!("{line} parquet --folder {}", root.display())).text(1);

        let python = sluicegate_testkit::engine("parquet-readers/bin/python");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands/read_parquet.py");
        let read = std::process::Command::new(python).arg(script).arg(&root).output().unwrap();
        let read = crate::support::Said::from(read).json(0);
        let nanos = |row: &Value, field: &str| {
            let text = row[field].as_str();
            text.map(|text| parse_amount("usd", text).unwrap())
        };
        // Decimals are compared as numbers, times as texts.
        let comparable = |rows: Vec<Value>| {
            let rows = rows.into_iter().map(|mut row| {
                let numbers = (nanos(&row, "amount").unwrap(), nanos(&row, "cost"));
                let fields = row.as_object_mut().unwrap();
                fields.retain(|field, value| {
                    !["amount", "cost"].contains(&field.as_str()) && !value.is_null()
                });
                (row["id"].as_str().unwrap().to_owned(), (numbers, row))
            });
            rows.collect::<BTreeMap<_, _>>()
        };
        let expected = rows.text(1).lines().map(|row| serde_json::from_str(row).unwrap());
        let expected = comparable(expected.collect());
        assert!(expected.values().any(|((_, cost), _)| cost.is_some()));
        for reader in ["pyarrow", "duckdb"] {
            let found = read[reader].as_array().unwrap().clone();
            assert_eq!(found.len(), expected.len(), "{reader}");
            assert_eq!(comparable(found), expected, "{reader}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_replaced_whole_and_a_folder_grows_by_closed_days() {
    on_every_engine(async |shell| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.csv");
        let to_file = format!("usage export {DAYS} --format csv --file {}", file.display());
        let root = folder.path().join("usage");
        let to_folder = format!("usage export {DAYS} --format csv --folder {}", root.display());
        shell.run(&to_file).text(0);
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1, "the header");

        replayed(shell);
        let whole = shell.run(&format!("usage export {DAYS} --format csv")).out;
        assert!(shell.run(&to_file).text(0).is_empty());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), whole);
        let said = shell.run(&to_folder);
        assert!(said.text(0).is_empty() && said.err.ends_with(" in 4 new files\n"), "{}", said.err);
        let again = shell.run(&to_folder);
        assert_eq!(again.err, "0 rows in 0 new files, 4 days there already\n");
        // The header of each file, and the rows of all files in the order of their days.
        let (header, rows) = whole.split_at(whole.find('\n').unwrap() + 1);
        let days = ["2026-01-28", "2026-01-29", "2026-01-31", "2026-02-01"];
        let parts = days.map(|day| {
            let part = root.join(format!("kind=day/date={day}/part-0.csv"));
            std::fs::read_to_string(part).unwrap().strip_prefix(header).unwrap().to_owned()
        });
        assert_eq!(parts.concat(), rows);
        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 2, "nothing temporary is left: {names:?}");

        let other = to_folder.replace("csv", "jsonl");
        assert!(shell.run(&other).error(2).contains("an export with other settings"));
        shell.run(&to_file.replace("rows.csv", "no/rows.csv")).error(6);
        let line = format!("{to_folder}/missing --table none-such");
        assert!(shell.run(&line).error(5).contains("does not exist"));
        assert!(!root.join("missing").exists());
    })
    .await;
}

/// The files of days under a folder, with their bytes.
fn parts(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let days = std::fs::read_dir(root.join("kind=hour")).into_iter().flatten();
    let parts = days.flat_map(|day| std::fs::read_dir(day.unwrap().path()).unwrap());
    let parts = parts.map(|part| part.unwrap().path());
    parts
        .map(|part| (part.strip_prefix(root).unwrap().into(), std::fs::read(&part).unwrap()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_export_leaves_whole_files_and_is_completed() {
    on_every_engine(async |shell| {
        replayed(shell);
        let folder = tempfile::tempdir().unwrap();
        let (whole, killed) = (folder.path().join("whole"), folder.path().join("killed"));
        let line = format!("usage export {DAYS} --kind hour --format csv --folder");
        shell.run(&format!("{line} {}", whole.display())).text(0);
        let expected = parts(&whole);
        assert_eq!(expected.len(), 4);
        for step in 0..16 {
            let mut export = shell.command();
            export.args(line.split(' ')).arg(&killed).stderr(Stdio::null());
            let mut export = export.spawn().unwrap();
            tokio::time::sleep(Duration::from_millis(15 * step)).await;
            export.kill().unwrap();
            export.wait().unwrap();
            let found = parts(&killed);
            assert!(found.iter().all(|(part, bytes)| expected.get(part) == Some(bytes)), "{step}");
        }
        shell.run(&format!("{line} {}", killed.display())).text(0);
        assert_eq!(parts(&killed), expected);
        let names = std::fs::read_dir(&killed).unwrap().count();
        assert_eq!(names, 2, "the kind and the settings: nothing temporary is left");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_that_are_not_closed_are_left_out() {
    on_every_engine(async |shell| {
        let now = sluicegate::Clock::now(&sluicegate::SystemClock);
        for (entity, hours_ago) in [("now", 0), ("earlier", 3)] {
            let at = EpochMillis::new(now.get() - hours_ago * 3_600_000).unwrap();
            let (entity, resource) = (entity.parse().unwrap(), "r".parse().unwrap());
            let key = ItemKey::Usage(entity, resource, WindowKind::Hour.containing(at));
            let (gsi2pk, gsi2sk) = key.gsi2_keys().unwrap();
            let mut put = shell.engine.client().put_item().table_name(&shell.table);
            for (name, key) in
                [("PK", key.pk()), ("SK", key.sk()), ("GSI2PK", gsi2pk), ("GSI2SK", gsi2sk)]
            {
                put = put.item(name, AttributeValue::S(key));
            }
            let one = AttributeValue::N("1".to_owned());
            put.item("u_rpm", one.clone()).item("events", one).send().await.unwrap();
        }
        let kind = "usage export --from -1d --format jsonl --kind hour";
        let entities = |words: &str| {
            let rows = shell.run(format!("{kind} {words}").trim_end());
            assert_eq!(
                rows.err.contains("left out: not closed yet"),
                words != "--open",
                "{}",
                rows.err
            );
            let rows = amounts_of_rows(rows.text(0)).into_keys();
            rows.map(|[entity, ..]| entity).collect::<Vec<_>>()
        };
        assert_eq!(entities("--open"), ["earlier", "now"]);
        assert_eq!(entities(""), ["earlier"]);
        assert_eq!(entities("--lag 600"), [""; 0]);
        for bad in ["--open --folder x", "--open --lag 1", "--to 2025-01-01", "--prices none"] {
            assert_eq!(shell.run(&format!("{kind} {bad}")).code, 2, "{bad}");
        }
        assert_eq!(shell.run(&format!("{kind} --output json")).code, 2);
    })
    .await;
}

/// A counter that was replaced by text: other rows are written, but the day has no file.
#[tokio::test(flavor = "multi_thread")]
async fn a_day_with_a_broken_window_has_no_file() {
    on_every_engine(async |shell| {
        replayed(shell);
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let update = shell.engine.client().update_item().table_name(&shell.table);
        let update = update.key("PK", text("ENTITY#user-123"));
        let update = update.key("SK", text("#USAGE#gpt-4#day#2026-01-28T00:00:00Z"));
        let update = update.update_expression("SET u_rpm = :text");
        update.expression_attribute_values(":text", text("x")).send().await.unwrap();
        let rows = shell.run(&format!("usage export {DAYS} --format jsonl"));
        assert!(rows.text(1).contains("user-42"), "{}", rows.out);
        assert!(rows.err.contains("left out: the item ENTITY#user-123"), "{}", rows.err);

        let folder = tempfile::tempdir().unwrap();
        let line = format!("usage export {DAYS} --format csv --folder {}", folder.path().display());
        let said = shell.run(&line);
        assert!(said.text(1).is_empty());
        assert!(said.err.ends_with(" in 3 new files, 1 day left out\n"), "{}", said.err);
        assert!(!folder.path().join("kind=day/date=2026-01-28").exists());
    })
    .await;
}
