//! Runs MiniStack or moto as a process of a test: started on a free port, killed with the value
//! that holds it.
//!
//! Each test that asks gets one, unless a task that outlives all tests has started one for them.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use sluicegate_local::client;
use tokio::time::Instant;

use crate::child::{dying_with_this_thread, free_port};

const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// The port is free when it is chosen; another program may take it before it is used.
const ATTEMPTS: u32 = 3;
const LOG: &str = "log";
/// `moto_server` takes several requests at once, and moto has no locks: of two updates of one item,
/// one is lost. This program takes one request at a time.
const MOTO: &str = "
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple('127.0.0.1', int(sys.argv[1]), DomainDispatcherApplication(create_backend_app))
";

/// Says if the server checks its callers' permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permissions {
    Ignored,
    Enforced,
}

/// The program of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Program {
    MiniStack(Permissions),
    Moto,
}

#[derive(Debug)]
pub(crate) struct EngineProcess {
    child: Child,
    port: u16,
    /// The folder of its log and its other files.
    folder: tempfile::TempDir,
}

impl EngineProcess {
    pub(crate) async fn start(program: Program) -> Self {
        for _ in 1..ATTEMPTS {
            let mut engine = Self::spawn(program);
            if engine.answers().await {
                return engine;
            }
        }
        let mut engine = Self::spawn(program);
        if !engine.answers().await {
            let log = std::fs::read_to_string(engine.folder.path().join(LOG)).unwrap_or_default();
            panic!("{program:?} does not answer on port {}; its log:\n{log}", engine.port);
        }
        engine
    }

    pub(crate) fn endpoint_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn spawn(program: Program) -> Self {
        let binary = engine(match program {
            Program::MiniStack(_) => "ministack/bin/ministack",
            Program::Moto => "moto/bin/python",
        });
        assert!(
            binary.exists(),
            "{} is missing; install it with `cargo xtask engines`",
            binary.display()
        );
        let port = free_port();
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join(LOG);
        let output = || Stdio::from(File::options().create(true).append(true).open(&log).unwrap());
        let mut command = dying_with_this_thread(binary);
        match program {
            Program::MiniStack(permissions) => command
                .env("BIND_HOST", "127.0.0.1")
                .env("GATEWAY_PORT", port.to_string())
                .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}"))
                .env("AUTH", if permissions == Permissions::Enforced { "true" } else { "false" }),
            Program::Moto => command.args(["-c", MOTO, &port.to_string()]),
        };
        let child = command
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output())
            .spawn()
            .unwrap();
        Self { child, port, folder }
    }

    /// Waits until it answers; `false` if it ended or takes too long.
    async fn answers(&mut self) -> bool {
        let client = client::dynamodb(&self.endpoint_url());
        let deadline = Instant::now() + ANSWERS_WITHIN;
        while Instant::now() < deadline && self.child.try_wait().unwrap().is_none() {
            let answer = client.list_tables().send().await;
            // A refusal is an answer.
            if answer.map_or_else(|error| error.raw_response().is_some(), |_| true) {
                return true;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        false
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder into which `cargo xtask engines` installs an engine.
#[must_use]
pub fn engine(path: &str) -> PathBuf {
    let folder = std::env::var_os("SLUICEGATE_ENGINES_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/engines")),
        PathBuf::from,
    );
    folder.join(path)
}
