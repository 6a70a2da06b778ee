//! `cargo xtask test`: runs every test that this machine can run, on every engine.
//!
//! Missing tools are installed or named; nothing is skipped. `cargo test --workspace` alone runs
//! the part that needs only Rust.

use std::ffi::OsString;

use anyhow::Result;

use crate::engines::{self, Engine};
use crate::ministack::{MiniStack, Permissions};
use crate::stages::Stages;
use crate::{process, template, workspace};

/// The engines of the tests, then the tools of the template's check.
const ENGINES: [Engine; 11] = [
    Engine::Ministack,
    Engine::Redis,
    Engine::LiteLlm,
    Engine::Envoy,
    Engine::Grpcio,
    Engine::OpenapiSpecValidator,
    Engine::ParquetReaders,
    Engine::ZaeLimiterSharded,
    Engine::Aws,
    Engine::CfnLint,
    Engine::Sam,
];

/// Runs the tests of the workspace on every engine, then checks the template.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments for `cargo test`; arguments for the test binaries follow another `--`.
    #[arg(last = true)]
    cargo_test: Vec<OsString>,
}

/// The value of `SLUICEGATE_TEST_ENGINES`: the suites run over each of these.
const TEST_ENGINES: &str = "embedded,ministack,redis";

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut stages = Stages::new("test");
    engines::check(&ENGINES)?;
    stages.run("engines", || engines::ensure(&ENGINES))?;
    stages.run("cargo test", || {
        // One for all tests: each of its own would cost a second of processor time.
        let ministack = MiniStack::start(Permissions::Ignored)?;
        let (of_cargo, of_tests) = split(&args.cargo_test);
        let run = |of_cargo: &[OsString]| {
            let mut cargo = process::cargo();
            cargo.args(["test", "--workspace", "--locked"]).args(of_cargo);
            // Tests that `cargo test` alone ignores need an engine.
            cargo.args(["--", "--include-ignored"]).args(of_tests);
            cargo.env("SLUICEGATE_TEST_ENGINES", TEST_ENGINES);
            cargo.env("SLUICEGATE_TEST_MINISTACK", &ministack.url);
            cargo.env("SLUICEGATE_ENGINES_DIR", workspace::engines_dir());
            cargo.env("SLUICEGATE_FUZZ_SECONDS", "10");
            process::run(&mut cargo)
        };
        if !of_cargo.is_empty() {
            return run(of_cargo);
        }
        // Without a choice, cargo would also link every example, for minutes of processor time.
        run(&["--tests".into()])?;
        run(&["--doc".into()])
    })?;
    stages.run("template", template::run)?;
    stages.print();
    Ok(())
}

/// The arguments before `--`, and those after it.
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
