//! `cargo xtask soak`: the tests that take too long for every change.
//!
//! It runs the exactness suite and the limiter's schedules over many more seeds than `cargo test`
//! can, kills `sluicegate local` more often and writes to it for longer, and converts a larger
//! table; all with optimisation. Run it before an issue is resolved. A failure names its seed, and
//! `--seeds` or `--schedules` runs that seed alone.

use std::process::Command;

use anyhow::Result;

use crate::engines::{self, Engine};
use crate::process;
use crate::stages::Stages;

/// Modules of the limiter's tests that need only DynamoDB's functions.
const ON_MOTO: [&str; 8] =
    ["basics", "cascade", "configuration", "costs::", "crowded", "doubt", "faults", "legacy"];

/// Runs the long tests.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seeds of generated histories, as FROM..TO (TO excluded).
    #[arg(long, default_value = "100..140")]
    seeds: String,
    /// Records in each history.
    #[arg(long, default_value_t = 5_000)]
    records: usize,
    /// Seeds of the limiter's schedules, as FROM..TO (TO excluded).
    #[arg(long, default_value = "10000..500000")]
    schedules: String,
    /// Seeds of histories of changed limits, as FROM..TO (TO excluded).
    #[arg(long, default_value = "100..300")]
    histories: String,
    /// Random acquires, corrections and releases whose usage is metered from the table's stream.
    #[arg(long, default_value_t = 10_000)]
    operations: usize,
    /// Requests of each of four processes of zae-limiter, in each of two namespaces.
    #[arg(long, default_value_t = 300)]
    requests: u32,
    /// Records that a chaotic delivery passes to the function's process.
    #[arg(long, default_value_t = 100_000)]
    chaos_records: usize,
    /// The number of times that `sluicegate local` is killed while producers write.
    #[arg(long, default_value_t = 50)]
    kills: u32,
    /// Seconds for which processes lease from one bucket of 10,000 a minute.
    #[arg(long, default_value_t = 30)]
    lease_seconds: u32,
    /// Seconds of 50,000 leased acquires each, for which the writes are counted at the engine.
    #[arg(long, default_value_t = 10)]
    write_seconds: u64,
    /// The number of buckets, if more than one. A thousand need 880 writes a second.
    #[arg(long, default_value_t = 1_000)]
    write_keys: u32,
    /// Acquires in one run of `sluicegate local`: the last 10,000 must cost no more than the first.
    #[arg(long, default_value_t = 200_000)]
    acquires: u64,
    /// Records of one replay.
    #[arg(long, default_value_t = 1_000_000)]
    replay_records: u64,
    /// Buckets of two limits that are converted while producers use them.
    #[arg(long, default_value_t = 5_000)]
    buckets: u32,
    /// Seconds of changed requests to the server.
    #[arg(long, default_value_t = 3_600)]
    fuzz_seconds: u64,
    /// Seconds for which a Python process works, whose memory must not grow.
    #[arg(long, default_value_t = 3_600)]
    growth_seconds: u64,
    /// The number of times that processes rush for the tokens of one bucket on Redis.
    #[arg(long, default_value_t = 100)]
    runs: u32,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut stages = Stages::new("soak");
    stages.run("engines", || {
        engines::ensure(&[Engine::Moto, Engine::Redis, Engine::ZaeLimiterSharded])
    })?;
    stages.run("schedules", || {
        test("simulation schedules -- --nocapture", &[("SLUICEGATE_TEST_SEEDS", &args.schedules)])
    })?;
    stages.run("fuzz", || {
        test("fuzz -- --nocapture", &[("SLUICEGATE_FUZZ_SECONDS", &args.fuzz_seconds)])
    })?;
    stages.run("followed", || {
        test("limiter followed -- --nocapture", &[("SLUICEGATE_TEST_SEEDS", &args.histories)])
    })?;
    stages.run("metering", || {
        test("limiter metering -- --nocapture", &[("SLUICEGATE_TEST_OPERATIONS", &args.operations)])
    })?;
    stages.run("exactness", || {
        test(
            "e2e -- exactness:: alerts:: --nocapture",
            &[("SLUICEGATE_TEST_SEEDS", &args.seeds), ("SLUICEGATE_TEST_RECORDS", &args.records)],
        )
    })?;
    stages.run("sharded", || {
        test(
            "e2e sharded::peer -- --nocapture --include-ignored",
            &[("SLUICEGATE_TEST_REQUESTS", &args.requests)],
        )
    })?;
    stages.run("chaos", || {
        test("chaos -- --nocapture", &[("SLUICEGATE_TEST_RECORDS", &args.chaos_records)])
    })?;
    stages.run("kills", || {
        test("local killed -- --nocapture", &[("SLUICEGATE_TEST_KILLS", &args.kills)])
    })?;
    stages.run("migrate", || {
        test("commands migrated -- --nocapture", &[("SLUICEGATE_TEST_BUCKETS", &args.buckets)])
    })?;
    stages.run("rate", || {
        test("local rate -- --nocapture", &[("SLUICEGATE_TEST_ACQUIRES", &args.acquires)])
    })?;
    stages.run("replay", || {
        test(
            "replay linear -- --nocapture",
            &[("SLUICEGATE_TEST_REPLAY_RECORDS", &args.replay_records)],
        )
    })?;
    stages.run("moto", || {
        test(&format!("limiter -- {}", ON_MOTO.join(" ")), &[("SLUICEGATE_TEST_ENGINES", &"moto")])
    })?;
    stages.run("python", || {
        let mut task = Command::new(std::env::current_exe()?);
        task.arg("python").env("SLUICEGATE_TEST_CALLS", "500");
        task.env("SLUICEGATE_TEST_GROWTH_SECONDS", args.growth_seconds.to_string());
        process::run(task.env("SLUICEGATE_TEST_OUTAGE_SECONDS", "10"))
    })?;
    stages.run("rush", || {
        test(
            "limiter rush -- --nocapture --include-ignored",
            &[("SLUICEGATE_TEST_RUNS", &args.runs)],
        )
    })?;
    stages.run("leases", || {
        test(
            "limiter leased -- --nocapture --include-ignored",
            &[("SLUICEGATE_TEST_LEASE_SECONDS", &args.lease_seconds)],
        )
    })?;
    // Run alone on the machine: they must keep a pace.
    stages.run("writes", || {
        test(
            "limiter leased::served -- --nocapture --test-threads 1",
            &[
                ("SLUICEGATE_TEST_WRITES_SECONDS", &args.write_seconds),
                ("SLUICEGATE_TEST_WRITES_KEYS", &args.write_keys),
            ],
        )
    })?;
    stages.print();
    Ok(())
}

/// Runs the tests that the words name after `cargo test --test`, with these variables, in a build
/// of its own: hours of SQLite and JSON justify that, but not fat LTO.
fn test(words: &str, vars: &[(&str, &dyn ToString)]) -> Result<()> {
    let mut cargo = process::cargo();
    // One selection of packages for all stages: each other one would compile the SDKs anew.
    cargo.args(["test", "--locked", "--workspace", "--test"]).args(words.split(' '));
    for (name, value) in [("OPT_LEVEL", "2"), ("DEBUG_ASSERTIONS", "true")] {
        cargo.env(format!("CARGO_PROFILE_DEV_{name}"), value);
    }
    cargo.env("CARGO_TARGET_DIR", crate::workspace::target_dir().join("soak"));
    cargo.env("SLUICEGATE_ENGINES_DIR", crate::workspace::engines_dir());
    process::run(cargo.envs(vars.iter().map(|(name, value)| (name, value.to_string()))))
}
