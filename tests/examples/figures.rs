//! Compares functions: size, resident memory, and time from process start to the first response on
//! a loopback Runtime API.
//!
//! `figures BOOTSTRAP BARE`, two release builds; `cargo xtask figures` makes them and runs this.
//! The runs alternate, so that other load on the machine affects all of them, and the medians are
//! compared. Two rows are `bootstrap`: answering an event without records, which is the work of the
//! bare function, and counting a first record in two windows.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a tool by hand")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluicegate_testkit::{
    EngineKind, FunctionProcess, InvocationResult, RunningEngine, RuntimeApi,
};

/// Runs of each row.
const RUNS: usize = 31;
const NO_RECORDS: &str = r#"{"Records":[]}"#;
/// Two limits, an INSERT: an hour and a day window to write.
const ONE_RECORD: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/events/01-insert-first-acquire.json");

/// A measured function and its first event.
struct Row {
    name: &'static str,
    binary: PathBuf,
    event: String,
    runs: Vec<Run>,
}

/// The figures of one start of a function.
struct Run {
    first_response: Duration,
    /// After the first response.
    resident_kib: u64,
    /// At any time until then.
    peak_kib: u64,
}

#[tokio::main]
async fn main() {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [bootstrap, bare] = args.as_slice() else { panic!("usage: figures BOOTSTRAP BARE") };
    let one_record = std::fs::read_to_string(ONE_RECORD).unwrap();
    let row = |name, binary: &Path, event: &str| Row {
        name,
        binary: binary.to_owned(),
        event: event.to_owned(),
        runs: Vec::new(),
    };
    let mut rows = [
        row("bare", bare, NO_RECORDS),
        row("bootstrap", bootstrap, NO_RECORDS),
        row("bootstrap, one record", bootstrap, &one_record),
    ];
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    for run in 0..=RUNS {
        for row in &mut rows {
            // A table each: the first record is always the first of its windows.
            let table = engine.create_table().await;
            let measured = measure(row, engine.endpoint_url(), &table).await;
            // The first run reads the binary from the disk.
            if run > 0 {
                row.runs.push(measured);
            }
        }
    }
    engine.stop().await;
    print(&rows);
}

async fn measure(row: &Row, endpoint_url: &str, table: &str) -> Run {
    let api = RuntimeApi::start().await;
    let env = [("TABLE_NAME", table), ("AWS_ENDPOINT_URL", endpoint_url)];
    let event = row.event.clone();
    let start = Instant::now();
    let process = FunctionProcess::spawn(&row.binary, &api, env);
    let answer = api.invoke(event, Duration::from_secs(30)).await;
    let first_response = start.elapsed();
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id().unwrap()));
    let InvocationResult::Response(answer) = answer else {
        panic!("{}: {answer:?}; {}", row.name, process.stderr())
    };
    assert_eq!(answer, r#"{"batchItemFailures":[]}"#);
    let status = status.unwrap();
    let kib = |field: &str| {
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let run = Run { first_response, resident_kib: kib("VmRSS:"), peak_kib: kib("VmHWM:") };
    process.stop().await;
    run
}

fn print(rows: &[Row]) {
    println!("median of {RUNS} runs; x: beside the bare function\n");
    println!(
        "| function | size, bytes | x | resident, KiB | x | peak, KiB | x | first response, ms | x | fastest, ms |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let beside = rows[0].figures();
    for row in rows {
        let cells: Vec<String> = row
            .figures()
            .iter()
            .zip(beside)
            .enumerate()
            .map(|(column, (figure, beside))| {
                let digits = if column < 3 { 0 } else { 2 };
                format!(" {figure:.digits$} | {:.2} |", figure / beside)
            })
            .collect();
        let fastest = row.runs.iter().map(|run| run.first_response).min().unwrap();
        println!("| {} |{} {:.2} |", row.name, cells.concat(), fastest.as_secs_f64() * 1_000.0);
    }
}

impl Row {
    /// Bytes, KiB resident, KiB at the peak, milliseconds.
    fn figures(&self) -> [f64; 4] {
        let bytes = std::fs::metadata(&self.binary).unwrap().len();
        [
            as_f64(bytes),
            as_f64(median(self.runs.iter().map(|run| run.resident_kib))),
            as_f64(median(self.runs.iter().map(|run| run.peak_kib))),
            median(self.runs.iter().map(|run| run.first_response)).as_secs_f64() * 1_000.0,
        ]
    }
}

fn median<T: Ord + Copy>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values[values.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "figures far below 2^53")]
fn as_f64(value: u64) -> f64 {
    value as f64
}
