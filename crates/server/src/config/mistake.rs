//! A mistake in a configuration.

use std::fmt;

/// A mistake in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// The line, from 1.
    pub line: usize,
    /// The setting, like `callers[1].sha256`; empty: the file as a whole.
    pub path: String,
    /// The mistake.
    pub message: String,
}

impl Mistake {
    /// A mistake in the YAML itself, which belongs to no setting.
    pub(super) fn of_file(line: usize, message: impl Into<String>) -> Self {
        Self { line, path: String::new(), message: message.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, path, message } = self;
        let colon = if path.is_empty() { "" } else { ": " };
        write!(f, "{line}: {path}{colon}{message}")
    }
}
