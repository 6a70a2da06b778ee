//! The process of `sluicegate local`.

use std::path::Path;
use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};

/// A `sluicegate local` that serves.
pub(crate) struct Local {
    child: Child,
    stderr: ChildStderr,
    /// The lines that it printed for a shell to paste.
    pub(crate) exports: Vec<String>,
}

/// The end of a process.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.arg("local").args(args).env_remove("SLUICEGATE_TABLE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

impl Local {
    /// The processor time that it used so far, in ticks of the kernel's clock.
    pub(crate) fn processor_ticks(&self) -> u64 {
        let pid = self.child.id().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The name of the program may hold blanks. Behind it, the first field is the third of all;
        // the 14th and 15th are the times in the program and in the kernel.
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let ticks = |field: &str| field.parse::<u64>().unwrap();
        fields.split_whitespace().skip(14 - 3).take(2).map(ticks).sum()
    }

    /// Starts it and waits until it serves; `Err` if it ends instead.
    pub(crate) async fn start(args: &[&str]) -> Result<Self, Ended> {
        Self::serving(command(args)).await
    }

    /// The same for a command that is already built.
    pub(crate) async fn serving(mut command: Command) -> Result<Self, Ended> {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut exports = Vec::new();
        while exports.len() < 5 {
            let Some(line) = lines.next_line().await.unwrap() else { break };
            exports.push(line);
        }
        let stderr = child.stderr.take().unwrap();
        let local = Self { child, stderr, exports };
        if local.exports.len() == 5 { Ok(local) } else { Err(local.end().await) }
    }

    /// Starts it on a file and a port that it had before. Repeats until the kernel releases the
    /// port, which a connecting client may hold for a moment.
    pub(crate) async fn restart(file: &Path, port: &str) -> Self {
        for _ in 0..100 {
            match Self::start(&["--port", port, "--data", file.to_str().unwrap()]).await {
                Ok(local) => return local,
                Err(ended) => assert!(ended.stderr.contains("in use"), "{}", ended.stderr),
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("port {port} stays in use");
    }

    pub(crate) fn value(&self, name: &str) -> &str {
        let prefix = format!("export {name}=");
        self.exports.iter().find_map(|line| line.strip_prefix(&prefix)).unwrap()
    }

    pub(crate) fn port(&self) -> String {
        self.value("AWS_ENDPOINT_URL").rsplit(':').next().unwrap().to_owned()
    }

    /// Asks it to stop, as Ctrl-C does.
    pub(crate) async fn stop(self) -> Ended {
        let id = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().await.unwrap().success());
        self.end().await
    }

    /// Kills it at once.
    pub(crate) async fn kill(mut self) {
        self.child.start_kill().unwrap();
        self.end().await;
    }

    async fn end(mut self) -> Ended {
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).await.unwrap();
        Ended { status: self.child.wait().await.unwrap(), stderr }
    }
}
