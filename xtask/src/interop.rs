//! `cargo xtask interop`: runs this library and zae-limiter on one bucket of the embedded engine.
//!
//! zae-limiter writes the reference schema. The test shows that each reads the other's buckets
//! correctly: both acquire from one bucket at once.

use std::ffi::OsString;

use anyhow::Result;

use crate::engines::{self, Engine};
use crate::{process, workspace};

pub(crate) fn run() -> Result<()> {
    engines::ensure(&[Engine::ZaeLimiter])?;
    let python = Engine::ZaeLimiter.bin().join("python");
    let script = workspace::root().join("xtask").join("interop").join("acquire.py");
    let mut cargo = process::cargo();
    cargo.args(["run", "--locked", "--quiet", "--package", "sluicegate-tests"]);
    cargo.args(["--example", "interop", "--"]);
    cargo.args([OsString::from(python), OsString::from(script)]);
    process::run(&mut cargo)
}
