//! The process of a function under test: a `bootstrap` binary in the environment that Lambda gives.
//!
//! It inherits nothing from the test's own environment, so that it is configured as on Lambda, and
//! is killed with the value that holds it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use sluicegate_local::client::REGION;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::runtime_api::{FUNCTION_NAME, RuntimeApi};

/// A running function.
#[derive(Debug)]
pub struct FunctionProcess {
    child: Child,
    stdout: Captured,
    stderr: Captured,
}

/// The output of a function that ended.
#[derive(Debug)]
pub struct Exit {
    /// Its exit status.
    pub status: ExitStatus,
    /// Everything it wrote to standard output.
    pub stdout: String,
    /// Everything it wrote to standard error.
    pub stderr: String,
}

impl FunctionProcess {
    /// Starts `bootstrap` as a function of `api`, with Lambda's variables and then `env`.
    ///
    /// # Panics
    /// If the binary cannot be started.
    pub fn spawn<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        bootstrap: &Path,
        api: &RuntimeApi,
        env: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let spawned = Command::new(bootstrap)
            .env_clear()
            .env("AWS_LAMBDA_RUNTIME_API", api.address())
            .env("AWS_LAMBDA_FUNCTION_NAME", FUNCTION_NAME)
            .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
            .env("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand")
            .env("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{FUNCTION_NAME}"))
            .env("AWS_LAMBDA_LOG_STREAM_NAME", "2026/01/28/[$LATEST]0")
            .env("AWS_REGION", REGION)
            .env("AWS_DEFAULT_REGION", REGION)
            .env("AWS_ACCESS_KEY_ID", "local")
            .env("AWS_SECRET_ACCESS_KEY", "local")
            .env("TZ", ":UTC")
            .envs(env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = spawned
            .unwrap_or_else(|error| panic!("{} cannot be started: {error}", bootstrap.display()));
        let stdout = Captured::new(child.stdout.take().unwrap());
        let stderr = Captured::new(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    /// Its process id, as long as it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// The standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.so_far()
    }

    /// The standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.so_far()
    }

    /// Kills it.
    ///
    /// # Panics
    /// If the process cannot be waited for.
    pub async fn stop(mut self) -> Exit {
        let _ = self.child.start_kill();
        self.exit().await
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If the process cannot be waited for.
    pub async fn exit(mut self) -> Exit {
        let status = self.child.wait().await.unwrap();
        Exit { status, stdout: self.stdout.all().await, stderr: self.stderr.all().await }
    }
}

/// A pipe that is read as it fills, so that the function never blocks on it.
#[derive(Debug)]
struct Captured {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Captured {
    fn new(mut pipe: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = bytes.clone();
        let reader = tokio::spawn(async move {
            let mut chunk = vec![0; 8 * 1024];
            while let Ok(read @ 1..) = pipe.read(&mut chunk).await {
                sink.lock().unwrap().extend_from_slice(&chunk[..read]);
            }
        });
        Self { bytes, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    async fn all(&mut self) -> String {
        let _ = (&mut self.reader).await;
        self.so_far()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_function_gets_lambdas_environment_and_no_other() {
        let api = RuntimeApi::start().await;
        let env = Path::new("/usr/bin/env");
        let exit = FunctionProcess::spawn(env, &api, [("TABLE_NAME", "t")]).exit().await;
        assert!(exit.status.success() && exit.stderr.is_empty());
        let has = |line: &str| exit.stdout.lines().any(|printed| printed == line);
        assert!(has(&format!("AWS_LAMBDA_RUNTIME_API={}", api.address())), "{}", exit.stdout);
        assert!(has("TABLE_NAME=t"));
        assert!(!exit.stdout.contains("CARGO_MANIFEST_DIR"));
    }

    #[tokio::test]
    async fn a_function_that_goes_on_never_blocks_on_its_output_and_is_killed() {
        let api = RuntimeApi::start().await;
        let none: [(&str, &str); 0] = [];
        let process = FunctionProcess::spawn(Path::new("/usr/bin/yes"), &api, none);
        // More than a pipe holds.
        while process.stdout().len() < 256 * 1024 {
            tokio::task::yield_now().await;
        }
        assert!(process.id().is_some());
        assert!(!process.stop().await.status.success());
    }
}
