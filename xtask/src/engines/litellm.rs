//! The price list in the Python package LiteLLM.
//!
//! The list is the same in every wheel, so that one wheel is unpacked for any system and Python,
//! without the packages that it depends on.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::venv;

pub(super) const PINS: &[&str] = &["litellm==1.109.1"];
const NAME: &str = "litellm";

/// Makes sure that the list is in `dir`.
pub(super) fn ensure(dir: &Path) -> Result<()> {
    let target = format!("--target={}", folder(dir).display());
    let wheel = ["--python-platform=x86_64-manylinux_2_28", "--python-version=3.11"];
    let options = ["--no-deps", "--only-binary=:all:", wheel[0], wheel[1], &target];
    venv::ensure(dir, NAME, PINS, &options)
}

/// The list that [`ensure`] makes sure of.
pub(super) fn list(dir: &Path) -> PathBuf {
    folder(dir).join("litellm/model_prices_and_context_window_backup.json")
}

fn folder(dir: &Path) -> PathBuf {
    dir.join(NAME).join("package")
}
