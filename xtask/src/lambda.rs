//! `cargo xtask lambda`: builds the function as Lambda runs it, for this machine's architecture.
//!
//! With cargo's own linker instead of zig: a native build needs no cross compiler, and on Debian 12
//! it asked for nothing newer than glibc 2.34, which is what Amazon Linux 2023 has. A newer build
//! machine may link newer symbols. `sam build` makes the arm64 build, with zig.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::engines::{self, Engine};
use crate::{process, workspace};

pub(crate) fn run() -> Result<()> {
    engines::ensure(&[Engine::CargoLambda])?;
    // Called by its path: `cargo lambda` would prefer one that the user installed.
    let mut build = Command::new(Engine::CargoLambda.program());
    build.args(["lambda", "build", "--release", "--locked", "--compiler", "cargo"]);
    build.args(["--package", "sluicegate-processor", "--bin", "bootstrap"]);
    process::forget_package(&mut build);
    process::run(&mut build)?;

    let bootstrap = workspace::target_dir().join("lambda").join("bootstrap").join("bootstrap");
    let bytes = fs::metadata(&bootstrap)
        .with_context(|| format!("cargo-lambda left no {}", bootstrap.display()))?
        .len();
    println!("{} {bytes} bytes", bootstrap.display());
    Ok(())
}
