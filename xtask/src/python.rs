//! `cargo xtask python`: builds the wheel of the Python package, installs it into an environment, and
//! runs its tests and type checks there. `cargo xtask bench` times it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::engines::venv;
use crate::{process, workspace};

/// The packages that build a wheel and install it.
pub(crate) const INSTALLERS: [&str; 2] = ["maturin==1.16.0", "pip==26.3"];
const TOOLS: [&str; 4] =
    ["mypy==1.18.2", "pyright[nodejs]==1.1.414", "pytest==8.4.2", "typing_extensions==4.15.0"];

/// The LiteLLM proxy, and what its extra `proxy` needs without a database of its own.
const PROXY: [&str; 19] = [
    "litellm==1.109.3",
    "apscheduler==3.11.3",
    "backoff==2.2.1",
    "cryptography==50.0.2",
    "expression==5.8.0",
    "fastapi==0.165.0",
    "fastapi-sso==0.23.0",
    "httpx==0.28.1",
    "mcp==2.3.0",
    "orjson==3.13.0",
    "pyjwt==2.15.1",
    "python-multipart==0.0.34",
    "redis==8.1.0",
    "rich==15.0.0",
    "soundfile==0.14.0",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
    "uvloop==0.23.0",
    "websockets==17.4",
];

pub(crate) fn run() -> Result<()> {
    let bin = environment("environment", &[&INSTALLERS[..], &TOOLS[..], &PROXY[..]].concat())?;
    let wheel = install(&bin, "dev")?;
    let python = bin.join("python");
    let package = package();
    let tests = package.join("tests");
    process::run(
        Command::new(&python)
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
            .arg(&tests)
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    )?;
    process::run(
        Command::new(&python)
            .args(["-m", "mypy", "--strict", "--cache-dir", "/dev/null", "--config-file"])
            .arg(package.join("pyproject.toml"))
            .args([&package.join("sluicegate"), &package.join("benchmarks"), &tests]),
    )?;
    process::run(Command::new(bin.join("pyright")).arg("--pythonpath").arg(&python).arg(&tests))?;
    println!("built and tested {}", wheel.display());
    Ok(())
}

/// Times decisions on leased tokens, with the wheel as it is published.
pub(crate) fn bench() -> Result<()> {
    let bin = environment("benchmarks", &INSTALLERS)?;
    install(&bin, "wheel")?;
    let script = package().join("benchmarks").join("try_acquire.py");
    process::run(Command::new(bin.join("python")).arg(script))
}

fn package() -> PathBuf {
    workspace::root().join("bindings").join("python")
}

/// Makes an environment with these packages, and returns the folder of its programs.
fn environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = workspace::root().join("target").join("python");
    std::fs::create_dir_all(&folder).context("the folder of the environment")?;
    venv::ensure(&folder, name, packages, &[])?;
    Ok(folder.join(name).join("bin"))
}

/// Builds the wheel with a profile, by the maturin of an environment, and installs it there.
pub(crate) fn install(bin: &Path, profile: &str) -> Result<PathBuf> {
    let wheels = workspace::root().join("target").join("python").join(format!("wheels-{profile}"));
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).context("the wheel of an earlier run")?;
    }
    // In the target folder of the workspace, so that most of it is compiled already.
    process::run_quietly(
        Command::new(bin.join("maturin"))
            .args(["build", "--locked", "--profile", profile, "--manifest-path"])
            .arg(package().join("Cargo.toml"))
            .arg("--out")
            .arg(&wheels),
    )?;
    let entry = std::fs::read_dir(&wheels)?.next().context("maturin built no wheel")?;
    let wheel = entry?.path();
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"];
    process::run(
        Command::new(bin.join("python"))
            .args(pip)
            .args(["--force-reinstall", "--no-deps"])
            .arg(&wheel),
    )?;
    Ok(wheel)
}
