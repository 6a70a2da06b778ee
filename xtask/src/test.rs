//! `cargo xtask test`: everything that can be tested on this machine, on every engine.
//!
//! What is missing is installed or named; nothing is skipped. `cargo test --workspace` alone runs
//! the part that needs only Rust.

use std::ffi::OsString;

use anyhow::Result;

use crate::engines::{self, Engine};
use crate::stages::Stages;
use crate::{process, template, workspace};

/// Runs the tests of the workspace on every engine, then checks the template.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Handed on to `cargo test`; what the test binaries should get goes behind another `--`.
    #[arg(last = true)]
    cargo_test: Vec<OsString>,
}

/// What `SLUICEGATE_TEST_ENGINES` names: the suites run over each of these.
const TEST_ENGINES: &str = "embedded,ministack,redis";

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut stages = Stages::new("test");
    stages.run("engines", || engines::ensure(&[Engine::Ministack, Engine::Aws]))?;
    stages.run("cargo test", || {
        let mut cargo = process::cargo();
        cargo.args(["test", "--workspace", "--locked"]).args(&args.cargo_test);
        cargo.env("SLUICEGATE_TEST_ENGINES", TEST_ENGINES);
        cargo.env("SLUICEGATE_ENGINES_DIR", workspace::engines_dir());
        process::run(&mut cargo)
    })?;
    stages.run("template", template::run)?;
    stages.print();
    Ok(())
}
