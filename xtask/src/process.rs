//! Runs other programs: from the workspace root, with their output on this terminal, and an error
//! that repeats the command line.

use std::env;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Runs `command` and fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    let status = command
        .current_dir(workspace::root())
        .status()
        .with_context(|| format!("`{line}` could not be started"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// As [`run`], without any output: package managers report one failure in many lines, and the error
/// here ends with the reason.
pub(crate) fn run_quietly(command: &mut Command) -> Result<()> {
    let line = line(command);
    let output = command
        .current_dir(workspace::root())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("`{line}` could not be started"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed: {}", reason(&errors));
    }
    Ok(())
}

/// The first line that contains an error, or else the last line.
fn reason(errors: &str) -> &str {
    let mut lines = errors.trim().lines();
    let is_error = |line: &&str| {
        let line = line.to_ascii_lowercase();
        line.starts_with("error") || line.starts_with("npm error")
    };
    lines.clone().find(is_error).or_else(|| lines.next_back()).unwrap_or("no reason given")
}

/// The cargo that runs this task, in the environment of a cargo that was typed by hand.
///
/// `cargo run` describes the package xtask in variables. Build scripts that watch them (ring's
/// does) would run again, and half of the workspace with them, whenever a task and a hand-typed
/// cargo take turns.
pub(crate) fn cargo() -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    forget_package(&mut command);
    command
}

/// Removes from `command` the variables in which cargo describes the package xtask.
pub(crate) fn forget_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let describes_package = name.to_str().is_some_and(|name| {
            ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|p| name.starts_with(p))
        });
        if describes_package {
            command.env_remove(name);
        }
    }
}

fn line(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_repeats_the_command_line() {
        let error = run(Command::new("false").arg("--now")).unwrap_err();
        assert!(error.to_string().starts_with("`false --now` failed"), "{error}");
    }

    #[test]
    fn a_quiet_failure_ends_with_its_reason() {
        let script = "echo retrying >&2; echo ERROR: no network >&2; echo see the log >&2; exit 1";
        let error = run_quietly(Command::new("sh").args(["-c", script])).unwrap_err();
        assert!(error.to_string().ends_with("exit 1` failed: ERROR: no network"), "{error}");
        assert_eq!(reason("a\nb\n"), "b");
        assert_eq!(reason(""), "no reason given");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run(&mut Command::new("no-such-program")).unwrap_err();
        assert_eq!(error.to_string(), "`no-such-program` could not be started");
    }

    #[test]
    fn cargo_is_not_told_about_this_package() {
        let command = cargo();
        let removed = |wanted: &str| {
            command.get_envs().any(|(name, value)| name == wanted && value.is_none())
        };
        // `cargo test` sets these as `cargo run` does.
        assert!(removed("CARGO_MANIFEST_DIR") && removed("CARGO_PKG_NAME"));
    }
}
