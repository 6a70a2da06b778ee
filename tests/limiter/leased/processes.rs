//! Several processes on one bucket over HTTP, judged by the table's stream and not by their own
//! reports; on Redis, which has no stream, by the counters of the bucket.
//!
//! `SLUICEGATE_TEST_LEASE_SECONDS` sets how long they ask, for a soak.

use std::process::Stdio;
use std::time::{Duration, Instant};

use sluicegate::Limiter;
use sluicegate::dynamo::DynamoTable;
use sluicegate::redis::RedisStore;
use sluicegate_core::{CompositeBucket, EpochMillis};
use sluicegate_testkit::{EngineKind, RedisServer, RunningEngine};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use crate::stress::images;
use crate::support::{at, name, patient};

const TASKS: u64 = 16;

/// The number and the size of the processes' requests.
#[derive(Debug, Clone, Copy)]
struct Load {
    processes: u64,
    seconds: u64,
    per_minute: u64,
    burst: u64,
    /// The total demand, as a multiple of the bucket's tokens.
    times: u64,
}

impl Load {
    fn of_test() -> Self {
        match std::env::var("SLUICEGATE_TEST_LEASE_SECONDS") {
            Ok(seconds) => {
                let seconds = seconds.parse().expect("a number of seconds");
                Self { processes: 4, seconds, per_minute: 10_000, burst: 10_000, times: 10 }
            }
            Err(_) => Self { processes: 4, seconds: 4, per_minute: 6_000, burst: 600, times: 10 },
        }
    }

    /// The tokens that the bucket held and earned in this time.
    fn earned_in(&self, time: Duration) -> u64 {
        let millis = u64::try_from(time.as_millis()).unwrap();
        self.burst + self.per_minute * millis / 60_000
    }

    const fn holds(&self) -> u64 {
        self.burst + self.per_minute * self.seconds / 60
    }

    fn start(&self, engine: &RunningEngine, table: &DynamoTable, accounting: &str) -> Child {
        self.start_on(engine.endpoint_url(), table.name(), accounting, "settle")
    }

    fn start_on(&self, store: &str, table: &str, accounting: &str, end: &str) -> Child {
        let per_s = self.times * self.holds() / self.seconds / self.processes;
        let numbers = [TASKS, per_s, self.seconds, self.per_minute, self.burst];
        let mut command = Command::new(env!("CARGO_BIN_EXE_leaser"));
        command.args([store, table]);
        command.args(numbers.map(|number| number.to_string())).args([accounting, end]);
        command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    }
}

/// The report of a process.
#[derive(Debug)]
struct Ended {
    /// The requests that it admitted.
    admitted: i64,
    /// The writes that may have been done twice or not at all: their answers came late, on a loaded
    /// machine.
    ambiguous: i64,
    is_settled: bool,
}

async fn ended(mut process: Child) -> Ended {
    let mut bytes = Vec::new();
    process.stdout.take().unwrap().read_to_end(&mut bytes).await.unwrap();
    process.wait().await.unwrap();
    let count = |of| i64::try_from(bytes.iter().filter(|byte| **byte == of).count()).unwrap();
    Ended { admitted: count(b'a'), ambiguous: count(b'u'), is_settled: bytes.last() == Some(&b'.') }
}

/// The tokens that were taken so far according to the table, and the time.
fn consumed(image: &CompositeBucket) -> (i64, EpochMillis) {
    let consumed = image.limits[&name("rps")].consumed.get();
    (i64::try_from(consumed).unwrap(), image.refilled_at)
}

/// No stretch of the stream took more than the burst and the refill.
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

/// The tokens that the bucket held and earned from its first write to its last, and an interval
/// longer.
fn earned(images: &[CompositeBucket]) -> i128 {
    let [first, .., last] = images else { panic!("{} images", images.len()) };
    let (rule, until) = (first.limits[&name("rps")].rule, at(last.refilled_at.get() + 100));
    i128::from(rule.burst().get()) + rule.refill().accrued_between(first.refilled_at, until)
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
        let ended = futures_util::future::join_all(processes.into_iter().map(ended)).await;
        assert!(ended.iter().all(|process| process.is_settled), "{ended:?}");
        let admitted: i64 = ended.iter().map(|process| process.admitted).sum();

        let images = images(&engine, table.name()).await;
        let took = match accounting {
            "at-lease" => check_stream(&images),
            _ => consumed(images.last().unwrap()).0,
        };
        // Tokens of a write whose result nobody learned may stay counted, or their use uncounted.
        if ended.iter().all(|process| process.ambiguous == 0) {
            assert_eq!(took, admitted * 1_000, "{accounting}: {ended:?}");
        } else if accounting == "at-lease" {
            assert!(took >= admitted * 1_000, "{accounting}: {took}, {ended:?}");
        }
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
    let ended = futures_util::future::join_all(processes.into_iter().map(ended)).await;
    let settled: Vec<_> = ended.iter().map(|process| process.is_settled).collect();
    assert_eq!(settled, [false, false, true, true]);
    let admitted: i64 = ended.iter().map(|process| process.admitted).sum();

    let images = images(&engine, table.name()).await;
    let took = check_stream(&images) / 1_000;
    let counted: Vec<_> = images.iter().map(|image| consumed(image).0 / 1_000).collect();
    let leases = counted.windows(2).map(|pair| pair[1] - pair[0]);
    let largest = leases.chain(counted.first().copied()).max().unwrap();
    // The rest of a lease, one in flight, and the tasks that were about to report an admission.
    let most = 2 * (2 * largest + i64::try_from(TASKS).unwrap());
    let lost = took - admitted;
    println!(
        "{took} taken, {admitted} admitted: {lost} lost, at most {most} by leases of {largest}"
    );
    assert!((0..=most).contains(&lost), "{lost} of {most}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_are_killed_while_they_are_idle_lose_nothing() {
    let engine = RunningEngine::start(EngineKind::Embedded).await;
    let table = table(&engine).await;
    // Less than there is: all processes hold tokens when they stop asking.
    let load = Load { processes: 4, seconds: 2, per_minute: 600_000, burst: 10_000, times: 1 };
    let start = |_| load.start_on(engine.endpoint_url(), table.name(), "at-lease", "idle");
    let mut processes: Vec<_> = (0..load.processes).map(start).collect();
    tokio::time::sleep(Duration::from_secs(load.seconds)).await;
    // Held tokens are given back half as long again after they are too old; no process asks by
    // then.
    let (mut idle, mut before) = (0, 0);
    while idle < 20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let images = images(&engine, table.name()).await;
        idle = if images.len() == before { idle + 1 } else { 0 };
        before = images.len();
    }
    for process in &mut processes {
        process.start_kill().unwrap();
    }
    let ended = futures_util::future::join_all(processes.into_iter().map(ended)).await;
    assert!(ended.iter().all(|process| process.admitted > 0 && !process.is_settled), "{ended:?}");
    let admitted: i64 = ended.iter().map(|process| process.admitted).sum();
    let took = check_stream(&images(&engine, table.name()).await) / 1_000;
    println!("{admitted} admitted, {took} taken: nothing lost by four kills");
    assert_eq!(took, admitted, "{ended:?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn processes_on_redis_admit_what_the_bucket_earns_and_lose_what_they_held_at_most() {
    let server = RedisServer::start().await;
    let load = Load::of_test();
    for (accounting, kills) in [("at-lease", 0), ("at-settle", 0), ("at-lease", 2)] {
        let prefix = format!("{accounting}-{kills}:");
        let begin = Instant::now();
        let start = |_| load.start_on(&server.url(), &prefix, accounting, "settle");
        let mut processes: Vec<_> = (0..load.processes).map(start).collect();
        tokio::time::sleep(Duration::from_millis(load.seconds * 250)).await;
        for process in &mut processes[..kills] {
            process.start_kill().unwrap();
        }
        let ended = futures_util::future::join_all(processes.into_iter().map(ended)).await;
        let most = i64::try_from(load.earned_in(begin.elapsed())).unwrap();
        let is_settled: Vec<_> = ended.iter().map(|process| process.is_settled).collect();
        assert_eq!(is_settled.iter().filter(|is_settled| !**is_settled).count(), kills);
        let admitted: i64 = ended.iter().map(|process| process.admitted).sum();

        let store = RedisStore::new(server.url()).unwrap().prefix(&prefix);
        let limiter = patient(Limiter::builder(store));
        let stand = limiter.peek("shared", "r").await.unwrap();
        let took = i64::try_from(stand[0].consumed.get() / 1_000).unwrap();
        println!(
            "redis, {accounting}, {kills} killed: {admitted} of {most} admitted, {took} taken"
        );
        assert!(took <= most, "{took} of {most}");
        if kills == 0 {
            assert_eq!(took, admitted, "{ended:?}");
            let share = if load.seconds < 30 { 90 } else { 98 };
            let holds = i64::try_from(load.holds()).unwrap();
            assert!(admitted * 100 >= holds * share, "{admitted} of {holds}");
        } else {
            // A lease is at most a quarter of the balance, and one may be in flight.
            let held = 2 * 2 * i64::try_from(load.burst).unwrap() / 4;
            assert!((0..=held).contains(&(took - admitted)), "{took}, {admitted} of {held}");
        }
    }
}
