//! `cargo xtask bench`: measures the way from the bytes of an event to the updates of windows, in time
//! and instructions, and decisions made in the process, in Rust beside other limiters and in Python.
//!
//! Times depend on other load on the machine, so only ratios within one run are useful; instruction
//! counts are the same on a busy machine. Instruction counts need valgrind.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::{process, python, workspace};

/// The same version as the library `gungraun` in Cargo.lock: the two speak a private protocol.
const RUNNER_VERSION: &str = "0.20.0";

pub(crate) fn run() -> Result<()> {
    bench("sluicegate-core", "grouping", None)?;
    bench("sluicegate", "leased", None)?;
    python::bench()?;
    if Command::new("valgrind").arg("--version").output().is_err() {
        bail!("instruction counts need valgrind; type:  apt-get install -y valgrind");
    }
    let tools = workspace::root().join("target").join("tools");
    let runner = tools.join("bin").join("gungraun-runner");
    let version = Command::new(&runner).arg("--version").output();
    let installed =
        version.is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains(RUNNER_VERSION));
    if !installed {
        println!("installing gungraun-runner {RUNNER_VERSION} into target/tools (a few minutes)");
        let mut install = process::cargo();
        install.args(["install", "gungraun-runner", "--quiet", "--locked", "--debug", "--force"]);
        install.args(["--version", RUNNER_VERSION, "--root"]).arg(tools);
        process::run(&mut install)?;
    }
    bench("sluicegate-core", "instructions", Some(&runner))
}

fn bench(package: &str, name: &str, runner: Option<&Path>) -> Result<()> {
    let mut cargo = process::cargo();
    cargo.args(["bench", "--locked", "--package", package, "--bench", name]);
    if let Some(runner) = runner {
        cargo.env("GUNGRAUN_RUNNER", runner);
    }
    process::run(&mut cargo)
}
