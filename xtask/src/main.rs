//! Development tasks, run as `cargo xtask TASK`.
//!
//! Rust instead of shell scripts: the tasks are linted, tested and documented like the code that
//! they serve. Each task is one file; a task that fails ends with a line of advice.
#![allow(clippy::print_stdout, clippy::print_stderr)] // A terminal is all that a task talks to.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod capture;
mod compare;
mod engines;
mod examples;
mod features;
mod figures;
mod interop;
mod lambda;
mod ministack;
mod modules;
mod package;
mod page;
mod process;
mod python;
mod readme;
mod scale;
mod semver;
mod session;
mod soak;
mod stack;
mod stages;
mod template;
mod test;
mod workspace;

/// Development tasks of Sluicegate.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Benchmarks reading and grouping events, and decisions on leased tokens in Rust and Python.
    Bench,
    Capture(capture::Args),
    Compare(compare::Args),
    Engines(engines::Args),
    /// Runs the examples of every command's `--help`.
    Examples,
    /// Checks the limiter with every sensible set of features, and that Redis needs no AWS SDK.
    Features,
    /// Measures the function beside a bare one: size, memory, time to the first response.
    Figures,
    /// Lets zae-limiter and this library acquire from one bucket, and compares the counts.
    Interop,
    /// Builds the function for this machine's architecture.
    Lambda,
    Modules(modules::Args),
    /// Runs the README's example against the packages as they would be published.
    Package,
    /// Builds the wheel of the Python package, and runs its tests and type checks.
    Python,
    /// Runs the console blocks of the README, of docs/tour.md and of docs/examples.md, and compares
    /// what they print.
    Readme,
    Scale(scale::Args),
    /// Compares the public API with the commit in xtask/semver-baseline.
    Semver,
    Soak(soak::Args),
    /// Types the commands of docs/deploy.md against an emulation of AWS.
    Stack,
    /// Lints template.yaml and asserts the properties that correct counting depends on.
    Template,
    Test(test::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Bench => bench::run(),
        Task::Capture(args) => capture::run(&args),
        Task::Compare(args) => compare::run(&args),
        Task::Engines(args) => engines::run(&args),
        Task::Examples => examples::run(),
        Task::Features => features::run(),
        Task::Figures => figures::run(),
        Task::Interop => interop::run(),
        Task::Lambda => lambda::run(),
        Task::Modules(modules::Args) => modules::run(),
        Task::Package => package::run(),
        Task::Python => python::run(),
        Task::Readme => readme::run(),
        Task::Scale(args) => scale::run(&args),
        Task::Semver => semver::run(),
        Task::Soak(args) => soak::run(&args),
        Task::Stack => stack::run(),
        Task::Template => template::run(),
        Task::Test(args) => test::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, without the backtrace that RUST_BACKTRACE would add to an `Err` from main.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
