//! `cargo xtask stack`: runs docs/deploy.md, without changes, against MiniStack, which enforces
//! IAM. Then stack/alerts.md delivers alerts to a topic and to an event bus there.
//!
//! `cargo xtask template` checks the features that MiniStack ignores (expiry, recovery, retries of
//! the mapping). The function is built for the processor of this machine.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::engines::{self, Engine};
use crate::ministack::{MiniStack, Permissions};
use crate::page::Page;
use crate::session;
use crate::{process, workspace};

/// cargo-lambda first: it finds zig through the Python beside it.
const TOOLS: [Engine; 3] = [Engine::CargoLambda, Engine::Sam, Engine::Aws];

/// The pages that are run, one after the other.
const PAGES: [&str; 2] = ["docs/deploy.md", "xtask/src/stack/alerts.md"];

pub(crate) fn run() -> Result<()> {
    engines::ensure(&TOOLS)?;
    engines::ensure(&[Engine::Ministack])?;
    process::run(process::cargo().args(["build", "--locked", "--bin", "sluicegate"]))?;
    let cloud = Cloud::start()?;
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        other => other,
    };
    let replaced = [("Architecture=arm64", format!("Architecture={architecture}"))];
    for page in PAGES {
        let page = Page::read(page, &replaced)?;
        page.type_all(&cloud.variables, Duration::ZERO, session::wait_for_an_hour_with_time_left)?;
    }
    ensure!(cloud.ministack.server.stop()?.code().is_some(), "MiniStack was killed");
    Ok(())
}

/// An AWS account on this machine.
struct Cloud {
    ministack: MiniStack,
    /// The variables with which a shell uses it.
    variables: Vec<(String, String)>,
}

impl Cloud {
    fn start() -> Result<Self> {
        let ministack = MiniStack::start(Permissions::Enforced)?;
        let mut path: Vec<_> = TOOLS.iter().map(|tool| tool.bin()).collect();
        path.push(session::bin_dir());
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let path = std::env::join_paths(path).context("PATH")?;
        let variables = owned(&[
            // The one account of MiniStack that may do everything.
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_ENDPOINT_URL", &ministack.url),
            ("AWS_REGION", "us-east-1"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("AWS_PAGER", ""),
            ("SAM_CLI_TELEMETRY", "0"),
            // The deployed program does the same without optimisation; `cargo xtask lambda` measures its size.
            ("SAM_BUILD_MODE", "debug"),
            ("CARGO_PROFILE_DEV_STRIP", "true"),
            ("__SAM_CLI_APP_DIR", &workspace::engines_dir().join("sam-home").to_string_lossy()),
            ("PATH", &path.to_string_lossy()),
        ]);
        Ok(Self { ministack, variables })
    }
}

fn owned(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
