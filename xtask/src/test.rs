//! `cargo xtask test`: everything that can be tested on this machine, on every engine.
//!
//! What is missing is installed or named; nothing is skipped. `cargo test --workspace` alone runs
//! the part that needs only Rust.

use std::ffi::OsString;

use anyhow::Result;

use crate::engines::{self, Engine};
use crate::ministack::{MiniStack, Permissions};
use crate::stages::Stages;
use crate::{process, template, workspace};

/// The engines of the tests, then the tools of the template's check.
const ENGINES: [Engine; 5] =
    [Engine::Ministack, Engine::Redis, Engine::Aws, Engine::CfnLint, Engine::Sam];

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
    engines::check(&ENGINES)?;
    stages.run("engines", || engines::ensure(&ENGINES))?;
    stages.run("cargo test", || {
        // One for all tests: each of them would spend a second of a processor on its own.
        let ministack = MiniStack::start(Permissions::Ignored)?;
        let mut cargo = process::cargo();
        let (of_cargo, of_tests) = split(&args.cargo_test);
        cargo.args(["test", "--workspace", "--locked"]).args(of_cargo);
        // Those that `cargo test` alone ignores need an engine.
        cargo.args(["--", "--include-ignored"]).args(of_tests);
        cargo.env("SLUICEGATE_TEST_ENGINES", TEST_ENGINES);
        cargo.env("SLUICEGATE_TEST_MINISTACK", &ministack.url);
        cargo.env("SLUICEGATE_ENGINES_DIR", workspace::engines_dir());
        process::run(&mut cargo)
    })?;
    stages.run("template", template::run)?;
    stages.print();
    Ok(())
}

/// What goes before `--`, and what goes behind it.
fn split(args: &[OsString]) -> (&[OsString], &[OsString]) {
    match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_test_binaries_go_behind_the_dashes() {
        let args = ["--lib", "redis", "--", "--nocapture"].map(OsString::from);
        assert_eq!(split(&args), (&args[..2], &args[3..]));
        assert_eq!(split(&args[..2]), (&args[..2], &args[..0]));
    }
}
