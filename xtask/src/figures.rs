//! `cargo xtask figures`: compares the function with a bare one that only builds the same client.
//!
//! Both are built as they are deployed; an example of the tests, which has the Runtime API to drive
//! them, measures and prints.

use anyhow::Result;

use crate::{lambda, process};

pub(crate) fn run() -> Result<()> {
    let bootstrap = lambda::build("bootstrap", &[])?;
    let bare = lambda::build("bare", &["bare"])?;
    let mut cargo = process::cargo();
    cargo.args(["run", "--quiet", "--locked", "--package", "sluicegate-tests"]);
    cargo.args(["--example", "figures", "--"]).arg(bootstrap).arg(bare);
    process::run(&mut cargo)
}
