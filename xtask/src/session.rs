//! Runs command lines as a person types them: one after the other in a shell, or a server in a
//! terminal of its own that runs until it is interrupted.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::{process, workspace};

/// The time for a server's expected output: it may be compiled first.
const START: Duration = Duration::from_secs(900);
/// The time for a server to stop.
const STOP: Duration = Duration::from_secs(60);
/// The seconds for all commands of one shell: some are compiled first.
const COMMANDS: u32 = 1_200;

/// The output of one command, on both streams, and its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) output: String,
    pub(crate) code: i32,
}

/// A shell in `folder` with these variables.
pub(crate) fn shell(script: &str, folder: &Path, variables: &[(String, String)]) -> Command {
    // A task in the background may ignore Ctrl-C; the programs that it starts here must not.
    let mut shell = Command::new("env");
    process::forget_package(&mut shell);
    shell
        .args(["--default-signal=INT", "bash", "-c", script])
        .current_dir(folder)
        .stdin(Stdio::null());
    shell.envs(variables.iter().map(|(name, value)| (name, value)));
    shell
}

/// Runs commands in one shell, with a pause after each: a person types no faster.
pub(crate) fn run(
    commands: &[String],
    folder: &Path,
    variables: &[(String, String)],
    pause: Duration,
) -> Result<Vec<Said>> {
    // A line that no program prints by accident; it separates the outputs.
    const MARK: &str = "@@@ exit code";
    let mut script = "exec 2>&1\n".to_owned();
    let pause = pause.as_secs_f64();
    for command in commands {
        script.push_str(&format!(
            "{command}\n_code=$?; echo; echo \"{MARK} $_code\"; sleep {pause}\n"
        ));
    }
    // One command that never ends must not use up the time of all others.
    let script = format!("exec timeout {COMMANDS} bash -c {}", quoted(&script));
    let output = shell(&script, folder, variables).output().context("bash could not be started")?;
    let output = String::from_utf8_lossy(&output.stdout);
    let mut said = Vec::new();
    let mut lines = String::new();
    for line in output.lines() {
        match line.strip_prefix(MARK) {
            Some(code) => {
                let code = code.trim().parse().context("an exit code")?;
                said.push(Said { output: std::mem::take(&mut lines), code });
            }
            None => lines.extend([line, "\n"]),
        }
    }
    if said.len() != commands.len() {
        bail!("`{}` ended the shell:\n{lines}", commands[said.len()]);
    }
    Ok(said)
}

fn quoted(script: &str) -> String {
    format!("'{}'", script.replace('\'', r"'\''"))
}

/// A server in the background; dropped, it is interrupted as by Ctrl-C.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Server {
    pub(crate) fn start(
        command: &str,
        folder: &Path,
        variables: &[(String, String)],
    ) -> Result<Self> {
        // In a process group of its own, so that its children are interrupted with it.
        let mut shell = shell(&format!("exec 2>&1\n{command}"), folder, variables);
        let mut child = shell.process_group(0).stdout(Stdio::piped()).spawn().context("bash")?;
        let output = child.stdout.take().context("no output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The receiver is gone once the server is dropped.
                let _ = sender.send(line);
            }
        });
        Ok(Self { child, lines, seen: Vec::new() })
    }

    /// Waits until `is_ready` is true for the lines printed so far.
    pub(crate) fn wait_until(&mut self, is_ready: impl Fn(&[String]) -> bool) -> Result<&[String]> {
        let end = Instant::now() + START;
        while !is_ready(&self.seen) {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(_) => bail!("the expected lines did not come:\n{}", self.seen.join("\n")),
            }
        }
        Ok(&self.seen)
    }

    /// Interrupts it and waits for its end.
    pub(crate) fn stop(mut self) -> Result<ExitStatus> {
        self.interrupt()
    }

    fn interrupt(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        self.signal("INT")?;
        let end = Instant::now() + STOP;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.signal("KILL")?;
        bail!("the server did not stop within {} s of Ctrl-C", STOP.as_secs())
    }

    fn signal(&self, name: &str) -> Result<()> {
        let group = format!("-{}", self.child.id());
        Command::new("kill").args([&format!("-{name}"), "--", &group]).status().context("kill")?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.interrupt() {
            eprintln!("{error:#}");
        }
    }
}

/// Waits if the hour is about to end: an acquire in one hour and a read in the next would not
/// match.
pub(crate) fn wait_for_an_hour_with_time_left() {
    let into_hour =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() % 3_600);
    let left = Duration::from_secs(3_600 - into_hour);
    if left < Duration::from_secs(60) {
        println!("waiting {} s for the next hour", left.as_secs());
        std::thread::sleep(left);
    }
}

/// A port that is free now.
pub(crate) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The folder of the built `sluicegate`.
pub(crate) fn bin_dir() -> std::path::PathBuf {
    workspace::target_dir().join("debug")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn commands_share_a_shell_and_are_told_apart() {
        let said = run(
            &commands(&["x=3", "echo $x; (exit $x)", "echo e >&2"]),
            Path::new("/"),
            &[],
            Duration::ZERO,
        );
        let said = said.unwrap();
        assert_eq!(said.iter().map(|said| said.code).collect::<Vec<_>>(), [0, 3, 0]);
        assert_eq!(said[1].output.trim(), "3");
        assert_eq!(said[2].output.trim(), "e");
        let error =
            run(&commands(&["exit 1", "true"]), Path::new("/"), &[], Duration::ZERO).unwrap_err();
        assert!(error.to_string().starts_with("`exit 1` ended the shell"), "{error}");
    }

    #[test]
    fn a_server_runs_until_it_is_interrupted() {
        let command = "trap 'exit 7' INT; echo up; while :; do sleep 0.1; done";
        let mut server = Server::start(command, Path::new("/"), &[]).unwrap();
        server.wait_until(|lines| lines.iter().any(|line| line == "up")).unwrap();
        assert_eq!(server.stop().unwrap().code(), Some(7));
    }
}
