//! One Python environment with pinned packages, and the stamp that marks it as complete.
//!
//! pip installs uv, which installs everything else in a tenth of pip's time. Other environments have no
//! pip unless they pin it.
//!
//! The stamp is written last and holds everything that makes an install stale: the pins, and the
//! folder, because the programs of an environment carry its absolute path and do not survive a move.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::python;
use crate::{process, workspace};

/// Makes sure that `dir/name` holds exactly the packages of `pins`.
/// `options` are handed to `uv pip install`.
pub(crate) fn ensure(dir: &Path, name: &str, pins: &[&str], options: &[&str]) -> Result<()> {
    let venv = dir.join(name);
    let stamp = stamp(&venv, pins);
    if is_current(&venv, &stamp) {
        return Ok(());
    }
    let start = Instant::now();
    eprintln!("engines: installing {} into {}", pins.join(" "), venv.display());
    let install = || {
        let uv = uv()?;
        make(&venv, &["--without-pip"])?;
        let mut install = Command::new(uv);
        install
            .args(["pip", "install", "--quiet", "--python"])
            .arg(venv.join("bin").join("python"));
        process::run_quietly(install.args(options).args(pins))
    };
    install().with_context(|| format!("{name} could not be installed"))?;
    fs::write(venv.join(STAMP), stamp).with_context(|| format!("cannot stamp {name}"))?;
    eprintln!("engines: {name} installed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

const STAMP: &str = ".sluicegate-stamp";
const UV: &str = "uv==0.13.9";

/// The program that installs packages; pip installs it if it is missing.
fn uv() -> Result<PathBuf> {
    let venv = workspace::engines_dir().join("uv");
    let (uv, stamp) = (venv.join("bin").join("uv"), stamp(&venv, &[UV]));
    if !is_current(&venv, &stamp) {
        make(&venv, &[])?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"];
        process::run_quietly(Command::new(venv.join("bin").join("python")).args(pip).arg(UV))?;
        fs::write(venv.join(STAMP), stamp).context("cannot stamp uv")?;
    }
    Ok(uv)
}

fn stamp(venv: &Path, pins: &[&str]) -> String {
    format!("{}\n{}\n", venv.display(), pins.join("\n"))
}

fn is_current(venv: &Path, stamp: &str) -> bool {
    // A link: it dangles when the system's Python was replaced by another version.
    let python = venv.join("bin").join("python");
    python.exists() && fs::read_to_string(venv.join(STAMP)).is_ok_and(|found| found == stamp)
}

/// Makes an empty environment.
fn make(venv: &Path, options: &[&str]) -> Result<()> {
    let system_python = Path::new(python::SYSTEM);
    python::check(system_python)?;
    if venv.exists() {
        fs::remove_dir_all(venv).with_context(|| format!("cannot remove {}", venv.display()))?;
    }
    process::run(Command::new(system_python).args(["-m", "venv"]).args(options).arg(venv))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that looks like a finished install, without Python.
    fn fake_venv(dir: &Path, pins: &[&str]) {
        let venv = dir.join("tool");
        fs::create_dir_all(venv.join("bin")).unwrap();
        fs::write(venv.join("bin/python"), "").unwrap();
        fs::write(venv.join(STAMP), stamp(&venv, pins)).unwrap();
    }

    #[test]
    fn an_install_is_stale_when_pins_place_or_python_change() {
        let dir = tempfile::tempdir().unwrap();
        let venv = dir.path().join("tool");
        fake_venv(dir.path(), &["tool==1"]);
        assert!(is_current(&venv, &stamp(&venv, &["tool==1"])));
        assert!(!is_current(&venv, &stamp(&venv, &["tool==2"])));
        assert!(!is_current(&venv, &stamp(Path::new("/elsewhere"), &["tool==1"])));
        fs::remove_file(venv.join("bin/python")).unwrap();
        assert!(!is_current(&venv, &stamp(&venv, &["tool==1"])));
    }

    #[test]
    fn nothing_is_started_for_an_install_that_is_current() {
        let dir = tempfile::tempdir().unwrap();
        fake_venv(dir.path(), &["not a package"]);
        ensure(dir.path(), "tool", &["not a package"], &[]).unwrap();
    }
}
