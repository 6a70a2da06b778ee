//! Checks that the system's Python can make environments, before it is used.
//!
//! Debian ships Python without the part that puts pip into an environment; `venv` then fails
//! with a page of text. The check says the one line to type instead.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// The name of the system's Python.
pub(super) const SYSTEM: &str = "python3";

/// Fails with the line to type if `python` is missing or cannot make environments.
pub(super) fn check(python: &Path) -> Result<()> {
    let answer = Command::new(python)
        .args(["-c", "import venv, ensurepip"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match answer {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => {
            bail!("{} has no venv module; type:  apt-get install -y python3-venv", python.display())
        }
        Err(_) => {
            bail!("{} is missing; type:  apt-get install -y python3 python3-venv", python.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_python_tells_the_line_to_type() {
        let error = check(Path::new("no-such-python3")).unwrap_err().to_string();
        assert!(error.ends_with("apt-get install -y python3 python3-venv"), "{error}");
    }

    #[test]
    fn a_python_without_venv_tells_the_line_to_type() {
        // `false` always fails, as a Python without the module does.
        let error = check(Path::new("false")).unwrap_err().to_string();
        assert!(error.ends_with("apt-get install -y python3-venv"), "{error}");
    }
}
