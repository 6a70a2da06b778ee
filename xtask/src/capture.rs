//! `cargo xtask capture`: records the sample event from an engine's real stream.
//!
//! Run by hand only: the records carry the time of the capture, and so do some of the windows that
//! they belong to. An example of the tests does the work, so that this package stays quick to
//! build.

use std::path::PathBuf;

use anyhow::Result;

use crate::{process, workspace};

/// Captures a stream of the embedded engine as a sample event.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file to write; by default the sample event of the tests is replaced.
    file: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let file = match &args.file {
        // Programs run in the workspace's root; a relative path belongs to the caller's folder.
        Some(file) => std::path::absolute(file)?,
        None => workspace::root().join("tests/events/12-captured-from-the-embedded-engine.json"),
    };
    let mut cargo = process::cargo();
    cargo.args(["run", "--quiet", "--locked", "--package", "sluicegate-tests"]);
    cargo.args(["--example", "capture", "--"]).arg(file);
    process::run(&mut cargo)
}
