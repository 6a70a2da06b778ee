//! The protocol between `cargo xtask compare` and a contestant: lines of text.
//!
//! A contestant is a process with one rate limiter. It first prints `{"version": ..}`, then answers
//! every line of its standard input with one line of JSON, and ends when its input does:
//!
//! - `warm LIMITS KEYS`: each of `key-0`, `key-1`, ... once;
//! - `slice LIMITS TASKS KEYS MILLIS`: the same keys in turn until the time is over;
//! - `ask KEY LIMITS TASKS COUNT`: one key, so many times.
//!
//! `LIMITS` is `a=100/60,b=5/1`: 100 tokens in 60 seconds and 5 in one. A request takes one token of
//! each. The contestants in Python and JavaScript are in `xtask/peers`.

use std::io::BufRead;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Decisions whose time is measured together: reading a clock takes as long as a decision in the
/// process.
const BATCH: u16 = 64;
const WARM_UP_TASKS: usize = 16;

/// So many tokens in so many seconds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) tokens: u32,
    pub(crate) seconds: u32,
}

/// The answer of a limiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Admitted,
    Refused,
    Failed(String),
}

/// A line of the input.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) limits: Vec<Limit>,
    pub(crate) tasks: usize,
    pub(crate) keys: Vec<String>,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Asked(u64),
    After(Duration),
}

/// The keys of an order in turn, for all tasks together, until its end.
pub(crate) struct Turn {
    order: Arc<Order>,
    next: AtomicU64,
    start: Instant,
}

/// The results of one task, or of all.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    admitted: u64,
    refused: u64,
    failed: u64,
    error: Option<String>,
    times: Vec<Duration>,
    /// From the order to the end of the last task.
    took: Duration,
}

impl FromStr for Limit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, rule) = text.split_once('=').ok_or("a limit without =")?;
        let (tokens, seconds) = rule.split_once('/').ok_or("a limit without /")?;
        let number = |text: &str| text.parse().map_err(|_| "a limit without its numbers");
        Ok(Self { name: name.to_owned(), tokens: number(tokens)?, seconds: number(seconds)? })
    }
}

impl FromStr for Order {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| "not a number");
        let count = |text: &str| text.parse::<usize>().map_err(|_| "not a number");
        let keys = |number| (0..number).map(|n| format!("key-{n}")).collect::<Vec<_>>();
        let words: Vec<_> = line.split_whitespace().collect();
        let (limits, tasks, keys, end) = match words[..] {
            ["warm", limits, keys_max] => {
                (limits, WARM_UP_TASKS, keys(count(keys_max)?), End::Asked(number(keys_max)?))
            }
            ["slice", limits, tasks, keys_max, millis] => {
                let time = Duration::from_millis(number(millis)?);
                (limits, count(tasks)?, keys(count(keys_max)?), End::After(time))
            }
            ["ask", key, limits, tasks, asked] => {
                (limits, count(tasks)?, vec![key.to_owned()], End::Asked(number(asked)?))
            }
            _ => return Err("no such order"),
        };
        let limits = limits.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { limits, tasks, keys, end })
    }
}

impl Turn {
    pub(crate) fn new(order: &Arc<Order>) -> Self {
        Self { order: order.clone(), next: AtomicU64::new(0), start: Instant::now() }
    }

    /// The next key, until the end.
    pub(crate) fn next(&self) -> Option<&String> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let is_over = match self.order.end {
            End::Asked(count) => n >= count,
            End::After(time) => self.start.elapsed() >= time,
        };
        let keys = &self.order.keys;
        (!is_over).then(|| &keys[usize::try_from(n).unwrap_or_default() % keys.len()])
    }
}

impl Tally {
    pub(crate) fn count(&mut self, decision: Decision) {
        match decision {
            Decision::Admitted => self.admitted += 1,
            Decision::Refused => self.refused += 1,
            Decision::Failed(error) => {
                self.failed += 1;
                self.error = Some(error);
            }
        }
    }

    pub(crate) fn time(&mut self, time: Duration) {
        self.times.push(time);
    }

    /// Adds the results of another task.
    pub(crate) fn add(&mut self, other: Self) {
        self.took = self.took.max(other.took);
        self.admitted += other.admitted;
        self.refused += other.refused;
        self.failed += other.failed;
        self.error = other.error.or(self.error.take());
        self.times.extend(other.times);
    }

    /// The task is over.
    pub(crate) fn end(mut self, turn: &Turn) -> Self {
        self.took = turn.start.elapsed();
        self
    }

    fn json(mut self) -> serde_json::Value {
        self.times.sort_unstable();
        let percentile = |percent: usize| {
            let index = self.times.len().saturating_sub(1) * percent / 100;
            self.times.get(index).map(|time| time.as_secs_f64() * 1e6)
        };
        serde_json::json!({
            "admitted": self.admitted,
            "refused": self.refused,
            "failed": self.failed,
            "error": self.error,
            "seconds": self.took.as_secs_f64(),
            "p50_us": percentile(50),
            "p99_us": percentile(99),
        })
    }
}

/// Carries out an order in threads, for a limiter that decides without waiting. Each thread
/// holds the guard of `enter`.
pub(crate) fn in_threads<G>(
    order: &Arc<Order>,
    enter: impl Fn() -> G + Sync,
    decide: impl Fn(&String) -> Decision + Sync,
) -> Tally {
    let barrier = Barrier::new(order.tasks);
    let turn = Turn::new(order);
    let thread = |number: usize| {
        let _entered = enter();
        barrier.wait();
        match order.end {
            End::Asked(_) => one_by_one(&turn, &decide),
            // Threads do not share a counter of keys here: it would cost more than a decision.
            End::After(time) => in_batches(&turn, time, number * 7_919, &decide),
        }
    };
    std::thread::scope(|scope| {
        let thread = &thread;
        let running: Vec<_> =
            (0..order.tasks).map(|number| scope.spawn(move || thread(number))).collect();
        let mut all = Tally::default();
        for thread in running {
            all.add(thread.join().unwrap());
        }
        all
    })
}

fn one_by_one(turn: &Turn, decide: impl Fn(&String) -> Decision) -> Tally {
    let mut tally = Tally::default();
    while let Some(key) = turn.next() {
        let start = Instant::now();
        tally.count(decide(key));
        tally.time(start.elapsed());
    }
    tally.end(turn)
}

fn in_batches(
    turn: &Turn,
    time: Duration,
    first: usize,
    decide: impl Fn(&String) -> Decision,
) -> Tally {
    let mut tally = Tally::default();
    let keys = &turn.order.keys;
    let mut keys = keys.iter().cycle().skip(first % keys.len());
    while turn.start.elapsed() < time {
        let start = Instant::now();
        for key in keys.by_ref().take(BATCH.into()) {
            tally.count(decide(key));
        }
        tally.time(start.elapsed() / u32::from(BATCH));
    }
    tally.end(turn)
}

/// Carries out the orders of the standard input, one after the other.
pub(crate) fn serve(version: &str, mut carry_out: impl FnMut(&Arc<Order>) -> Tally) {
    println!("{}", serde_json::json!({ "version": version }));
    for line in std::io::stdin().lock().lines() {
        let order = Arc::new(line.unwrap().parse().unwrap());
        println!("{}", carry_out(&order).json());
    }
}
