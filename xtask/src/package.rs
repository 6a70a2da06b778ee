//! `cargo xtask package`: runs the README's example against the packages as they would be
//! published.
//!
//! The workspace sees every file and every feature of its members; a user gets only the archive of
//! `cargo package`. A crate outside the workspace is built from the unpacked archives and runs the
//! example.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{process, workspace};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// In the order in which they would be published.
pub(crate) const PACKAGES: [&str; 4] =
    ["sluicegate-core", "sluicegate", "sluicegate-tower", "sluicegate-prices"];

pub(crate) fn run() -> Result<()> {
    let readme = fs::read_to_string(workspace::root().join("README.md")).context("README.md")?;
    let program = program(&readme).context("README.md has no ```rust example with a `main`")?;

    let mut package = process::cargo();
    // Verifying builds each archive by itself; the build below does so with both.
    package.args(["package", "--no-verify", "--allow-dirty", "--locked", "--quiet"]);
    package.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    package.arg("--target-dir").arg(workspace::target_dir());
    process::run(&mut package)?;

    // Outside the workspace's folder, or it would become a member.
    let scratch = std::env::temp_dir().join(format!("sluicegate-package-{}", std::process::id()));
    let result = build(&scratch, &program);
    fs::remove_dir_all(&scratch).ok();
    result
}

fn build(scratch: &Path, program: &str) -> Result<()> {
    fs::create_dir_all(scratch.join("src")).context("cannot make a folder")?;
    for package in PACKAGES {
        let archive = workspace::target_dir().join(format!("package/{package}-{VERSION}.crate"));
        let mut tar = Command::new("tar");
        // With current times: all archives have the same file times, and cargo would take the build
        // of an earlier run as fresh.
        process::run(tar.arg("-xmzf").arg(archive).arg("-C").arg(scratch))?;
    }
    fs::write(scratch.join("Cargo.toml"), manifest()).context("cannot write a manifest")?;
    fs::write(scratch.join("src/main.rs"), program).context("cannot write a program")?;
    let mut cargo = process::cargo();
    cargo.args(["run", "--quiet", "--manifest-path"]).arg(scratch.join("Cargo.toml"));
    // In the target folder of the workspace, so that most of it is compiled already.
    cargo.arg("--target-dir").arg(workspace::target_dir());
    process::run(&mut cargo)?;
    println!("the README's example runs against {PACKAGES:?} {VERSION} as packaged");
    Ok(())
}

fn manifest() -> String {
    format!(
        r#"[package]
name = "example"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
sluicegate = {{ path = "sluicegate-{VERSION}" }}
sluicegate-tower = {{ path = "sluicegate-tower-{VERSION}" }}
tokio = {{ version = "1", features = ["macros", "rt-multi-thread"] }}

[patch.crates-io]
sluicegate = {{ path = "sluicegate-{VERSION}" }}
sluicegate-core = {{ path = "sluicegate-core-{VERSION}" }}

[profile.dev]
debug = false
"#
    )
}

/// The example, which is a whole program. Its hidden lines are included.
fn program(readme: &str) -> Result<String> {
    let mut blocks = readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    let Some(example) = blocks.find(|block| block.contains("fn main")) else {
        bail!("no example");
    };
    let shown = example.lines().map(|line| match line {
        "#" => "",
        line => line.strip_prefix("# ").unwrap_or(line),
    });
    Ok(shown.flat_map(|line| [line, "\n"]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_includes_hidden_lines() {
        let readme = "x\n```rust\nother\n```\n```rust\n# use hidden;\n#\nfn main() {\n}\n```\n";
        assert_eq!(program(readme).unwrap(), "use hidden;\n\nfn main() {\n}\n");
        assert!(program("no example").is_err());
    }
}
