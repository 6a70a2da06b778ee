//! The contestants, and the commands that start them.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::install;
use super::scope::Store;
use crate::workspace;

/// A rate limiter on a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) store: Store,
    pub(crate) name: &'static str,
    program: Program,
}

#[derive(Debug, Clone, Copy)]
enum Program {
    /// `xtask/peers/zae.py` with this version.
    Zae(&'static str),
    /// `xtask/peers/flexible.js` on this kind of store.
    Flexible(&'static str),
    /// The example `compare` of the tests, as this contestant.
    Ours(&'static str),
    /// `xtask/peers/ours.py` in this mode.
    OursInPython(&'static str),
    /// A crate of the package in `xtask/peers/rust`.
    Crate(&'static str),
}

pub(crate) const OURS: &str = "Sluicegate";

/// In the order of the tables.
pub(crate) fn all() -> [Peer; 14] {
    use Store::{Dynamodb, Process, Redis};
    let peer = |store, name, program| Peer { store, name, program };
    [
        peer(Dynamodb, "zae-limiter 0.17", Program::Zae(install::ZAE_NEWEST)),
        peer(Dynamodb, "zae-limiter 0.8", Program::Zae(install::ZAE_0_8)),
        peer(Dynamodb, "rate-limiter-flexible", Program::Flexible("dynamodb")),
        peer(Dynamodb, OURS, Program::Ours("dynamodb")),
        peer(Dynamodb, "Sluicegate, leasing", Program::Ours("leased")),
        peer(Dynamodb, "Sluicegate for Python", Program::OursInPython("plain")),
        peer(Dynamodb, "Sluicegate for Python, leasing", Program::OursInPython("leased")),
        peer(Dynamodb, "Sluicegate for Python, try_acquire", Program::OursInPython("held")),
        peer(Redis, "rate-limiter-flexible", Program::Flexible("redis")),
        peer(Redis, "plain script", Program::Ours("script")),
        peer(Redis, OURS, Program::Ours("redis")),
        peer(Process, "governor", Program::Crate("governor")),
        peer(Process, "limitador", Program::Crate("limitador")),
        peer(Process, "Sluicegate, leasing, prepared", Program::Ours("prepared")),
    ]
}

/// The servers that are compared on.
pub(crate) fn servers() -> Command {
    let mut command = Command::new(install::ours());
    command.arg("servers").env("SLUICEGATE_ENGINES_DIR", workspace::engines_dir());
    command
}

fn started(program: impl AsRef<OsStr>, argument: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.arg(argument);
    command
}

impl Peer {
    /// Starts the contestant on the store at `url`.
    pub(crate) fn command(&self, url: &str) -> Command {
        let scripts = workspace::root().join("xtask").join("peers");
        let mut command = match self.program {
            Program::Zae(version) => started(install::zae_python(version), scripts.join("zae.py")),
            Program::Flexible(store) => {
                let mut node = started("node", scripts.join("flexible.js"));
                node.arg(store).env("NODE_PATH", install::node_modules());
                node
            }
            Program::Ours(contestant) => started(install::ours(), contestant),
            Program::OursInPython(_) => started(install::our_python(), scripts.join("ours.py")),
            Program::Crate(name) => started(install::crates(), name),
        };
        if !url.is_empty() {
            command.arg(url);
        }
        if let Program::OursInPython(mode) = self.program {
            command.arg(mode);
        }
        // Engines on loopback take any credentials. Other sources of credentials are not used.
        command.env("AWS_ACCESS_KEY_ID", "local").env("AWS_SECRET_ACCESS_KEY", "local");
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        for name in ["AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"] {
            command.env_remove(name);
        }
        command
    }

    /// The package that it is installed from.
    pub(crate) fn package(&self) -> &'static str {
        match self.program {
            Program::Zae(_) => "zae-limiter",
            Program::Flexible(_) => "rate-limiter-flexible",
            Program::Ours(_) | Program::OursInPython(_) => OURS,
            Program::Crate(name) => name,
        }
    }

    /// The version that runs: the one that the contestant reports, or that of its lock file.
    pub(crate) fn version(&self, hello: &Value) -> Result<String> {
        match self.program {
            Program::Ours("script") => Ok(String::new()),
            Program::Crate(name) => install::locked_version(name),
            Program::Zae(_)
            | Program::Flexible(_)
            | Program::Ours(_)
            | Program::OursInPython(_) => {
                let version = hello["version"].as_str();
                Ok(version.with_context(|| format!("{} told no version", self.name))?.to_owned())
            }
        }
    }
}
