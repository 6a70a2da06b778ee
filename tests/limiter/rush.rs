//! Processes that rush for the last tokens of one bucket of a Redis.
//!
//! `SLUICEGATE_TEST_RUNS` sets the number of runs, for a soak.

use std::process::Stdio;
use std::time::Duration;

use sluicegate::redis::RedisStore;
use sluicegate_testkit::RedisServer;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::bucket;

const PROCESSES: usize = 4;
const TASKS: u32 = 8;
const OPERATIONS: u32 = 16;
const RUNS: u32 = 10;

/// A process at the barrier.
struct Ready {
    child: Child,
    start: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Ready {
    async fn next(url: &str, entity: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rush"))
            .args([url, entity, &TASKS.to_string(), &OPERATIONS.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let start = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
        Self { child, start, lines }
    }

    /// The numbers of grants and refusals.
    async fn counts(mut self) -> (u32, u32) {
        let line = self.lines.next_line().await.unwrap().expect("counts");
        assert!(self.child.wait().await.unwrap().success());
        let (granted, refused) = line.split_once(' ').unwrap();
        (granted.parse().unwrap(), refused.parse().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test"]
async fn exactly_as_many_are_admitted_as_there_are_tokens() {
    let asked = std::env::var("SLUICEGATE_TEST_RUNS").ok();
    let runs = asked.map_or(RUNS, |asked| asked.parse().expect("a number of runs"));
    let server = RedisServer::start().await;
    for run in 0..runs {
        let entity = format!("run-{run}");
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            processes.push(Ready::next(&server.url(), &entity).await);
        }
        for process in &mut processes {
            process.start.write_all(b"go\n").await.unwrap();
        }
        let (mut granted, mut refused) = (0, 0);
        for process in processes {
            let counts = process.counts().await;
            granted += counts.0;
            refused += counts.1;
        }
        assert_eq!((granted, refused), (40, 4 * TASKS * OPERATIONS - 40), "run {run}");
        let store = RedisStore::new(server.url()).unwrap();
        let stored = store.bucket(&bucket(&entity, "r"), Duration::from_secs(5)).await;
        let limits = stored.unwrap().unwrap().limits;
        let left: Vec<_> =
            limits.values().map(|limit| (limit.tokens.get(), limit.consumed.get())).collect();
        assert_eq!(left, [(0, 40_000)]);
    }
    println!("{runs} runs: 40 of {} admitted in each", 4 * TASKS * OPERATIONS);
}
