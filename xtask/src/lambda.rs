//! `cargo xtask lambda`: builds the function as Lambda runs it, for this machine's architecture.
//!
//! It uses cargo's own linker instead of zig, as a native build needs no cross compiler. On Debian
//! 12 the binary needed nothing newer than glibc 2.34, the version of Amazon Linux 2023. A newer
//! build machine may link newer symbols. `sam build` makes the arm64 build, with zig.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::engines::{self, Engine};
use crate::{process, workspace};

pub(crate) fn run() -> Result<()> {
    let bootstrap = build("bootstrap", &[])?;
    let bytes = fs::metadata(&bootstrap)
        .with_context(|| format!("cannot read {}", bootstrap.display()))?
        .len();
    println!("{} {bytes} bytes", bootstrap.display());
    Ok(())
}

/// Builds a binary of the function's package with the features that it needs, and returns its path.
pub(crate) fn build(name: &str, features: &[&str]) -> Result<PathBuf> {
    engines::ensure(&[Engine::CargoLambda])?;
    // Called by its path: `cargo lambda` would prefer one that the user installed.
    let mut build = Command::new(Engine::CargoLambda.program());
    build.args(["lambda", "build", "--release", "--locked", "--compiler", "cargo"]);
    build.args(["--package", "sluicegate-processor", "--bin", name]);
    build.args(features.iter().flat_map(|feature| ["--features", feature]));
    process::forget_package(&mut build);
    process::run(&mut build)?;

    let binary = workspace::target_dir().join("lambda").join(name).join("bootstrap");
    anyhow::ensure!(binary.exists(), "cargo-lambda left no {}", binary.display());
    Ok(binary)
}
