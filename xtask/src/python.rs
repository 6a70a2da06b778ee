//! `cargo xtask python`: builds the wheel of the Python package, installs it into an environment, and
//! runs its tests and type checks there.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::engines::venv;
use crate::{process, workspace};

const TOOLS: [&str; 5] = [
    "maturin==1.16.0",
    "mypy==1.18.2",
    "pyright[nodejs]==1.1.414",
    "pytest==8.4.2",
    "typing_extensions==4.15.0",
];

pub(crate) fn run() -> Result<()> {
    let (root, folder) = (workspace::root(), workspace::root().join("target").join("python"));
    std::fs::create_dir_all(&folder).context("the folder of the environment")?;
    venv::ensure(&folder, "environment", &TOOLS, &[])?;
    let bin = folder.join("environment").join("bin");
    let wheels = folder.join("wheels");
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).context("the wheel of an earlier run")?;
    }
    // In the target folder of the workspace, so that most of it is compiled already.
    process::run_quietly(
        Command::new(bin.join("maturin"))
            .args(["build", "--locked", "--profile", "dev", "--manifest-path"])
            .arg(root.join("bindings/python/Cargo.toml"))
            .arg("--out")
            .arg(&wheels),
    )?;
    let wheel = the_wheel(&wheels)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"];
    let python = bin.join("python");
    process::run(
        Command::new(&python).args(pip).args(["--force-reinstall", "--no-deps"]).arg(&wheel),
    )?;
    let tests = root.join("bindings").join("python").join("tests");
    process::run(
        Command::new(&python)
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
            .arg(&tests)
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    )?;
    process::run(
        Command::new(&python)
            .args(["-m", "mypy", "--strict", "--cache-dir", "/dev/null"])
            .arg(&tests),
    )?;
    process::run(Command::new(bin.join("pyright")).arg("--pythonpath").arg(&python).arg(&tests))?;
    println!("built and tested {}", wheel.display());
    Ok(())
}

fn the_wheel(wheels: &std::path::Path) -> Result<PathBuf> {
    let entry = std::fs::read_dir(wheels)?.next().context("maturin built no wheel")?;
    Ok(entry?.path())
}
