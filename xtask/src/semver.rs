//! `cargo xtask semver`: compares the public API of the published crates with the recorded
//! baseline, by cargo-semver-checks.
//!
//! The baseline is a commit of this repository; `git rev-parse HEAD > xtask/semver-baseline` records
//! another one. The tool is installed at the first run, which takes
//! about ten minutes, so this is no stage of `.ci/run`.

use std::fs;

use anyhow::{Context, Result};

use crate::package::PACKAGES;
use crate::{process, workspace};

const VERSION: &str = "0.51.0";
/// Holds the commit of the baseline: before the first release, that of the last deliberate change.
const BASELINE: &str = "xtask/semver-baseline";

pub(crate) fn run() -> Result<()> {
    let path = workspace::root().join(BASELINE);
    let baseline = fs::read_to_string(&path).with_context(|| format!("cannot read {BASELINE}"))?;
    let tools = workspace::target_dir().join("tools");
    let tool = tools.join("bin/cargo-semver-checks");
    if !tool.exists() {
        let mut install = process::cargo();
        install.args(["install", "cargo-semver-checks", "--locked", "--version", VERSION]);
        process::run(install.arg("--root").arg(&tools))?;
    }
    let mut check = std::process::Command::new(tool);
    process::forget_package(&mut check);
    check.args(["semver-checks", "--baseline-rev", baseline.trim()]);
    check.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    process::run(&mut check)
}
