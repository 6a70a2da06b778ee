//! Why a command could not do its work, and the exit code that tells a script.

use std::io::Write;
use std::process::ExitCode;

/// Each variant has an exit code of its own, the same for every command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The input cannot be used; nothing was done.
    #[error("{0}")]
    BadInput(String),
    /// The store did not do what it was asked.
    #[error("{0}")]
    Store(String),
    /// The result could not be written out.
    #[error("cannot write the result: {0}")]
    Output(#[from] std::io::Error),
}

impl CliError {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::BadInput(_) => ExitCode::from(2),
            Self::Store(_) => ExitCode::from(5),
            Self::Output(_) => ExitCode::from(6),
        }
    }
}

/// Longer than any line that is worth reading.
const LINE_CHARS: usize = 4_000;

/// Tells a person something on standard error, in one line. Nobody may be reading, and what is
/// quoted may come from anywhere: control characters are spelled out.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", sluicegate_processor::one_line(line, LINE_CHARS));
}
