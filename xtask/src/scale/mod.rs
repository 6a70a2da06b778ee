//! `cargo xtask scale`: computes the resources for a million acquires a second, into
//! docs/scaling.md.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};

use self::model::{Limits, Load, Need, Producers};
use crate::workspace;

mod model;
mod plot;

const LOAD: Load = Load { acquires: 1e6, entities: 1_000_000, skew: 1.0, kinds: 2.0 };
const LIMITS: Limits = Limits {
    partition_writes: 1_000.0,
    utilisation: 0.7,
    batch: 1_000.0,
    batch_window: 5.0,
    overhead: 0.010,
    write: 0.005,
    writes_at_once: 16.0,
};
const SCENARIOS: [(&str, Producers); 4] = [
    ("a write for each acquire", Producers::Plain),
    (
        "leasing, 200 processes, any of which gets a request",
        Producers::Leasing { processes: 200.0, renewal: 1.0 },
    ),
    ("leasing, requests routed by entity", Producers::Leasing { processes: 1.0, renewal: 1.0 }),
    ("leasing, routed, leases of 10 s", Producers::Leasing { processes: 1.0, renewal: 10.0 }),
];
const OUTAGE_S: f64 = 600.0;
/// The number of concurrent batches of one shard.
const PARALLEL: f64 = 1.0;
/// Records in a batch; an event has 6 MB at most, the size of 2,800 records of two limits.
const BATCHES: [f64; 3] = [250.0, 1_000.0, 2_800.0];
/// The model ends two hours after the outage.
const MOST_S: usize = 7_200;
/// Dollars for a write unit, on demand, us-east-1, November 2026.
const WRITE_UNIT: f64 = 0.625e-6;
const BEGIN: &str = "<!-- cargo xtask scale: from here -->\n";
const END: &str = "<!-- to here -->\n";

/// Computes the figures of docs/scaling.md.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fail if the page differs from the computed one, instead of writing it.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let needs: Vec<_> = SCENARIOS
        .iter()
        .map(|(name, producers)| (*name, model::need(&LOAD, *producers, &LIMITS)))
        .collect();
    let path = workspace::root().join("docs/scaling.md");
    let page = fs::read_to_string(&path).context("docs/scaling.md")?;
    let (before, rest) = page.split_once(BEGIN).context("no place for the figures")?;
    let (_, after) = rest.split_once(END).context("no end of the figures")?;
    let figures = figures(&needs)?;
    println!("{figures}");
    let page_now = format!("{before}{BEGIN}{figures}{END}{after}");
    if args.check {
        ensure!(page == page_now, "docs/scaling.md is stale; type:  cargo xtask scale");
        return Ok(());
    }
    fs::write(&path, page_now).context("docs/scaling.md")?;
    let last = &needs[needs.len() - 1].1;
    let lines = BATCHES.map(|batch| (batch, ages(last, batch)));
    plot::ages(&workspace::root().join("docs/scaling.svg"), &lines)
}

fn figures(needs: &[(&str, Need)]) -> Result<String> {
    let mut text = String::new();
    writeln!(
        text,
        "| per second | acquires beyond an item's ceiling | writes of buckets | writes of windows | shards | invocations at once | of | dollars an hour | minutes until the age is gone, batches of 250, 1,000, 2,800 |"
    )?;
    writeln!(text, "|---|--:|--:|--:|--:|--:|--:|--:|--:|")?;
    for (name, need) in needs {
        let dollars = (need.bucket_writes + need.window_writes) * 3_600.0 * WRITE_UNIT;
        writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} | {:.0} ms | {} | {} |",
            thousands(need.beyond_an_item),
            thousands(need.bucket_writes),
            thousands(need.window_writes),
            thousands(need.shards),
            thousands(need.concurrency.ceil()),
            need.duration * 1_000.0,
            thousands(dollars),
            gone(need),
        )?;
    }
    Ok(text)
}

fn ages(need: &Need, batch: f64) -> Vec<f64> {
    need.ages(&Limits { batch, ..LIMITS }, PARALLEL, OUTAGE_S, MOST_S)
}

/// Minutes until the backlog is gone, for each size of a batch.
fn gone(need: &Need) -> String {
    let minutes = BATCHES.map(|batch| {
        let seconds = ages(need, batch).len();
        if seconds == MOST_S { "never".to_owned() } else { seconds.div_ceil(60).to_string() }
    });
    minutes.join(", ")
}

/// A count with separators between thousands.
pub(crate) fn thousands(count: f64) -> String {
    let digits = format!("{count:.0}");
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_parted() {
        let texts = [0.4, 999.0, 1_000.0, 1_234_567.0].map(thousands);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }
}
