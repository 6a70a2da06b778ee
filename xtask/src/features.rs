//! `cargo xtask features`: every sensible set of features compiles, and what it compiles.
//!
//! The other stages build with all features, where a forgotten `cfg` goes unnoticed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use crate::{process, workspace};

/// Sets of features of `sluicegate`; a package without `dynamodb` compiles nothing of the AWS SDK.
const SETS: [&str; 8] = [
    "",
    "redis",
    "redis-cluster,redis-tls",
    "dynamodb",
    "leasing",
    "redis,leasing",
    "dynamodb,leasing",
    "dynamodb,leasing,redis-cluster",
];

pub(crate) fn run() -> Result<()> {
    for features in SETS {
        let selected = ["-p", "sluicegate", "--no-default-features", "--features", features];
        let mut cargo = process::cargo();
        cargo.args(["clippy", "--quiet", "--lib", "--locked"]).args(selected);
        cargo.args(["--", "-D", "warnings"]);
        process::run(&mut cargo)?;

        let mut cargo = process::cargo();
        cargo.args(["tree", "--locked", "-e", "normal", "--prefix", "none"]).args(selected);
        let output = cargo.current_dir(workspace::root()).output().context("cargo tree")?;
        ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
        let crates = crates(&String::from_utf8_lossy(&output.stdout));
        let of_aws: Vec<_> = crates.iter().filter(|name| name.starts_with("aws-")).collect();
        ensure!(
            features.contains("dynamodb") || of_aws.is_empty(),
            "sluicegate with the features `{features}` compiles {of_aws:?}: make them optional"
        );
        println!("{:<32} {:>4} crates", format!("[{features}]"), crates.len());
    }
    Ok(())
}

/// The crates of a tree without prefixes, each with its version.
fn crates(tree: &str) -> BTreeSet<String> {
    let name = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    tree.lines().filter(|line| !line.is_empty()).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_counts_once_for_each_version() {
        let tree = "a v1.0.0 (/a)\nb v1.0.0\nb v2.0.0\nb v1.0.0 (*)\n\n";
        assert_eq!(
            crates(tree).into_iter().collect::<Vec<_>>(),
            ["a v1.0.0", "b v1.0.0", "b v2.0.0"]
        );
    }
}
