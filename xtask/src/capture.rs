//! `cargo xtask capture`: the sample event that comes from an engine's real stream.
//!
//! Only by hand: the records carry the time of the capture, and so do some of the windows that they
//! add up to. The work is done by an example of the tests, so that this package stays quick to build.

use std::path::PathBuf;

use anyhow::Result;

use crate::{process, workspace};

/// Captures a stream of the embedded engine as a sample event.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to; by default the sample event of the tests is replaced.
    file: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let file = match &args.file {
        // Programs run in the workspace's root, a path is meant from where it was typed.
        Some(file) => std::path::absolute(file)?,
        None => workspace::root().join("tests/events/12-captured-from-the-embedded-engine.json"),
    };
    let mut cargo = process::cargo();
    cargo.args(["run", "--quiet", "--locked", "--package", "sluicegate-tests"]);
    cargo.args(["--example", "capture", "--"]).arg(file);
    process::run(&mut cargo)
}
