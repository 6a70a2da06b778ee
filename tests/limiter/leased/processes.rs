//! Several processes on one bucket over HTTP, judged by the table's stream and not by what they say.
//!
//! `SLUICEGATE_TEST_LEASE_SECONDS` sets how long they ask, for a soak.

use std::process::Stdio;
use std::time::Duration;

use sluicegate::DynamoTable;
use sluicegate_core::{CompositeBucket, EpochMillis};
use sluicegate_testkit::{EngineKind, RunningEngine};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use crate::stress::images;
use crate::support::{at, name};

const TASKS: u64 = 16;

/// What the processes ask for, and of what.
#[derive(Debug, Clone, Copy)]
struct Load {
    processes: u64,
    seconds: u64,
    per_minute: u64,
    burst: u64,
}

impl Load {
    /// Ten times what the bucket holds.
    fn of_test() -> Self {
        match std::env::var("SLUICEGATE_TEST_LEASE_SECONDS") {
            Ok(seconds) => {
                let seconds = seconds.parse().expect("a number of seconds");
                Self { processes: 4, seconds, per_minute: 10_000, burst: 10_000 }
            }
            Err(_) => Self { processes: 4, seconds: 4, per_minute: 6_000, burst: 600 },
        }
    }

    const fn holds(&self) -> u64 {
        self.burst + self.per_minute * self.seconds / 60
    }

    fn start(&self, engine: &RunningEngine, table: &DynamoTable, accounting: &str) -> Child {
        let per_s = 10 * self.holds() / self.seconds / self.processes;
        let numbers = [TASKS, per_s, self.seconds, self.per_minute, self.burst];
        let mut command = Command::new(env!("CARGO_BIN_EXE_leaser"));
        command.args([engine.endpoint_url(), table.name()]);
        command.args(numbers.map(|number| number.to_string())).arg(accounting);
        command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    }
}

/// How many requests a process admitted, and whether it settled everything.
async fn admitted(mut process: Child) -> (i64, bool) {
    let mut bytes = Vec::new();
    process.stdout.take().unwrap().read_to_end(&mut bytes).await.unwrap();
    process.wait().await.unwrap();
    let admitted = bytes.iter().filter(|byte| **byte == b'a').count();
    (i64::try_from(admitted).unwrap(), bytes.last() == Some(&b'.'))
}

/// Tokens that the table says were taken so far, and when.
fn consumed(image: &CompositeBucket) -> (i64, EpochMillis) {
    (image.limits[&name("rps")].consumed.get(), image.refilled_at)
}

/// No stretch of the stream took more than the burst and what accrued.
fn check_stream(images: &[CompositeBucket]) -> i64 {
    let mut lowest = i128::MAX;
    let mut before = 0;
    for (n, image) in images.iter().enumerate() {
        let bucket = image.limits[&name("rps")];
        assert!(bucket.tokens.get() >= 0, "record {n}: {bucket:?}");
        let refill = bucket.rule.refill();
        let (consumed, refilled_at) = consumed(image);
        lowest = lowest.min(i128::from(before) - refill.accrued(refilled_at));
        before = consumed;
        // Every write was decided at its image's refill time or up to an interval later.
        let until = at(refilled_at.get() + 100);
        let most = lowest + i128::from(bucket.rule.burst().get()) + refill.accrued(until);
        assert!(i128::from(consumed) <= most, "record {n}: {consumed} of at most {most}");
    }
    before
}

/// What the bucket held and earned from its first write to its last, and an interval longer.
fn earned(images: &[CompositeBucket]) -> i128 {
    let [first, .., last] = images else { panic!("{} images", images.len()) };
    let (rule, until) = (first.limits[&name("rps")].rule, at(last.refilled_at.get() + 100));
    i128::from(rule.burst().get()) + rule.refill().gap(first.refilled_at, until)
}

async fn table(engine: &RunningEngine) -> DynamoTable {
    DynamoTable::new(engine.client(), engine.create_table().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_admit_what_the_bucket_earns_and_count_all_of_it() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let load = Load::of_test();
    for accounting in ["at-lease", "at-settle"] {
        let table = table(&engine).await;
        let start = |_| load.start(&engine, &table, accounting);
        let processes: Vec<_> = (0..load.processes).map(start).collect();
        let ended = futures_util::future::join_all(processes.into_iter().map(admitted)).await;
        assert!(ended.iter().all(|(_, is_settled)| *is_settled), "{ended:?}");
        let admitted: i64 = ended.iter().map(|(admitted, _)| admitted).sum();

        let images = images(&engine, table.name()).await;
        let took = match accounting {
            "at-lease" => check_stream(&images),
            _ => consumed(images.last().unwrap()).0,
        };
        assert_eq!(took, admitted * 1_000, "{accounting}: {ended:?}");
        let most = i64::try_from(load.holds()).unwrap();
        println!("{accounting}: {admitted} of {most} admitted, {} writes, {ended:?}", images.len());
        assert!(i128::from(took) <= earned(&images), "{took} of {}", earned(&images));
        let share = if load.seconds < 30 { 90 } else { 98 };
        assert!(admitted * 100 >= most * share, "{accounting}: {admitted} of {most}");
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_lose_what_they_held_at_most() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let (load, table) = (Load::of_test(), table(&engine).await);
    let start = |_| load.start(&engine, &table, "at-lease");
    let mut processes: Vec<_> = (0..load.processes).map(start).collect();
    tokio::time::sleep(Duration::from_millis(load.seconds * 250)).await;
    for process in &mut processes[..2] {
        process.start_kill().unwrap();
    }
    let ended = futures_util::future::join_all(processes.into_iter().map(admitted)).await;
    let settled: Vec<_> = ended.iter().map(|(_, is_settled)| *is_settled).collect();
    assert_eq!(settled, [false, false, true, true]);
    let admitted: i64 = ended.iter().map(|(admitted, _)| admitted).sum();

    let images = images(&engine, table.name()).await;
    let took = check_stream(&images) / 1_000;
    let counted: Vec<_> = images.iter().map(|image| consumed(image).0 / 1_000).collect();
    let leases = counted.windows(2).map(|pair| pair[1] - pair[0]);
    let largest = leases.chain(counted.first().copied()).max().unwrap();
    // The rest of a lease, one under way, and who was about to say that it was admitted.
    let most = 2 * (2 * largest + i64::try_from(TASKS).unwrap());
    let lost = took - admitted;
    println!(
        "{took} taken, {admitted} admitted: {lost} lost, at most {most} by leases of {largest}"
    );
    assert!((0..=most).contains(&lost), "{lost} of {most}");
    engine.stop().await;
}
