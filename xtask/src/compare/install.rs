//! Installs the peers in `target/peers`, and builds the Rust programs.
//!
//! As for the engines, a stamp marks an install as complete.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::scope::folder;
use crate::engines::{self, Engine, venv};
use crate::{process, python, workspace};

pub(crate) const ZAE_NEWEST: &str = "0.17.0";
/// The version that writes the reference schema.
pub(crate) const ZAE_0_8: &str = "0.8.1";
const NODE_PINS: [&str; 3] =
    ["rate-limiter-flexible@11.4.0", "ioredis@6.0.0", "@aws-sdk/client-dynamodb@3.1164.0"];
/// The environment of this project's wheel.
const OURS: &str = "sluicegate";
const STAMP: &str = "sluicegate-stamp";
const LOCK_FILE: &str = include_str!("../../peers/rust/Cargo.lock");

/// Installs the peers that are missing or differ from their pins.
pub(crate) fn peers() -> Result<()> {
    let folder = folder();
    fs::create_dir_all(folder.join("log"))
        .with_context(|| format!("cannot create {}", folder.display()))?;
    for version in [ZAE_NEWEST, ZAE_0_8] {
        let pin = format!("zae-limiter=={version}");
        venv::ensure(&folder, &zae(version), &[&pin], &[])?;
    }
    venv::ensure(&folder, OURS, &python::INSTALLERS, &[])?;
    node()?;
    crates_are_fetched()?;
    engines::ensure(&[Engine::Redis])
}

fn node() -> Result<()> {
    let has_npm = Command::new("npm").arg("--version").output().is_ok();
    ensure!(has_npm, "npm is missing; type:  apt-get install -y nodejs npm");
    let (folder, pins) = (folder().join("node"), NODE_PINS.join("\n"));
    if fs::read_to_string(folder.join(STAMP)).is_ok_and(|found| found == pins) {
        return Ok(());
    }
    eprintln!("compare: installing {} into {}", NODE_PINS.join(" "), folder.display());
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund"]);
    npm.args(["--fetch-retries=1", "--prefix"]).arg(&folder).args(NODE_PINS);
    process::run_quietly(&mut npm)?;
    fs::write(folder.join(STAMP), pins).context("cannot stamp the packages of npm")
}

fn crates_are_fetched() -> Result<()> {
    let mut cargo = process::cargo();
    cargo.args(["fetch", "--quiet", "--locked", "--manifest-path"]).arg(manifest());
    process::run_quietly(&mut cargo)
}

/// Builds the contestants in Rust, all by the same profile, and the wheel as it is published.
pub(crate) fn build() -> Result<()> {
    eprintln!("compare: building the wheel and the Rust programs (many minutes, the first time)");
    python::install(&folder().join(OURS).join("bin"), "wheel")?;
    let mut cargo = process::cargo();
    cargo.args(["build", "--quiet", "--profile", "bench", "--locked"]);
    cargo.args(["--package", "sluicegate-tests", "--example", "compare"]);
    process::run(&mut cargo)?;
    let mut cargo = process::cargo();
    cargo.args(["build", "--quiet", "--profile", "bench", "--locked", "--manifest-path"]);
    cargo.arg(manifest()).arg("--target-dir").arg(folder().join("rust"));
    process::run(&mut cargo)
}

fn manifest() -> PathBuf {
    workspace::root().join("xtask/peers/rust/Cargo.toml")
}

fn zae(version: &str) -> String {
    format!("zae-limiter-{version}")
}

/// The interpreter of a version of zae-limiter.
pub(crate) fn zae_python(version: &str) -> PathBuf {
    folder().join(zae(version)).join("bin").join("python")
}

/// The interpreter that has the wheel.
pub(crate) fn our_python() -> PathBuf {
    folder().join(OURS).join("bin").join("python")
}

/// The packages of npm.
pub(crate) fn node_modules() -> PathBuf {
    folder().join("node").join("node_modules")
}

/// The folder of the servers, and of this project as a contestant. Cargo keeps the builds of the
/// profile bench there.
pub(crate) fn ours() -> PathBuf {
    workspace::target_dir().join("release").join("examples").join("compare")
}

/// The peers from crates.io.
pub(crate) fn crates() -> PathBuf {
    folder().join("rust").join("release").join("sluicegate-peers")
}

/// The version of a crate that the peers are built with.
pub(crate) fn locked_version(name: &str) -> Result<String> {
    let entry = format!("name = \"{name}\"\nversion = \"");
    let Some((_, rest)) = LOCK_FILE.split_once(&entry) else {
        bail!("{name} is not in xtask/peers/rust/Cargo.lock");
    };
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_crates_are_those_of_the_lock_file() {
        let version = locked_version("governor").unwrap();
        assert!(version.starts_with("0.10."), "{version}");
        assert!(locked_version("governo").is_err());
    }
}
