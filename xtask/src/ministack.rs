//! Runs MiniStack as a server of a task: an AWS account on this machine.

use anyhow::{Context, Result};

use crate::engines::Engine;
use crate::session::{self, Server};
use crate::workspace;

/// The log line after which MiniStack answers.
const READY: &str = "services available on port";

/// Says if the server checks its callers' permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permissions {
    Ignored,
    Enforced,
}

/// A server that runs until it is dropped or stopped.
#[derive(Debug)]
pub(crate) struct MiniStack {
    pub(crate) server: Server,
    pub(crate) url: String,
    /// The folder of the server's files.
    _left: tempfile::TempDir,
}

impl MiniStack {
    /// Starts it on a free port of the loopback interface, and waits until it answers.
    pub(crate) fn start(permissions: Permissions) -> Result<Self> {
        let port = session::free_port()?;
        let url = format!("http://127.0.0.1:{port}");
        let folder = workspace::target_dir().join("ministack");
        std::fs::create_dir_all(&folder).context("cannot make a folder")?;
        let left = tempfile::tempdir_in(&folder).context("cannot make a folder")?;
        let variables = [
            ("TMPDIR", &*left.path().to_string_lossy()),
            ("AUTH", if permissions == Permissions::Enforced { "true" } else { "false" }),
            ("BIND_HOST", "127.0.0.1"),
            ("GATEWAY_PORT", &port.to_string()),
            ("AWS_ENDPOINT_URL", &url),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let command = format!("exec {}", Engine::Ministack.program().display());
        let mut server = Server::start(&command, &folder, &variables)?;
        server.wait_until(|lines| lines.iter().any(|line| line.contains(READY)))?;
        Ok(Self { server, url, _left: left })
    }
}
