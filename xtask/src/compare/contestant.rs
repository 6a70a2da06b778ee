//! A process that answers each line with a line of JSON, and ends when its input does.

use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// Longer than any order, and than the start of any process.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Dropping it ends it.
pub(crate) struct Process {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    hello: Value,
    log: PathBuf,
}

impl Process {
    /// Starts it and waits for its first line. Its standard error goes to a log.
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Self> {
        let log =
            super::scope::folder().join("log").join(format!("{}.log", name.replace(' ', "-")));
        let errors =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("{name} could not be started"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("no output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The receiver is gone once the process is dropped.
                let _ = sender.send(line);
            }
        });
        let mut process =
            Self { name: name.to_owned(), child, input, lines, hello: Value::Null, log };
        process.hello = process.answer()?;
        Ok(process)
    }

    /// The first line.
    pub(crate) fn hello(&self) -> &Value {
        &self.hello
    }

    /// Sends a line and waits for the answer.
    pub(crate) fn ask(&mut self, line: &str) -> Result<Value> {
        let input = self.input.as_mut().context("no input")?;
        // If the process has ended, its missing answer shows it.
        let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        self.answer().with_context(|| format!("no answer to `{line}`"))
    }

    fn answer(&mut self) -> Result<Value> {
        let Ok(line) = self.lines.recv_timeout(ANSWERS_WITHIN) else {
            let (name, log) = (&self.name, self.log.display());
            bail!("{name} ended, or takes longer than {ANSWERS_WITHIN:?}; look into {log}");
        };
        serde_json::from_str(&line).with_context(|| format!("{} said {line:?}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.input = None;
        let end = Instant::now() + ENDS_WITHIN;
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        // Both fail only if it has ended meanwhile.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Process> {
        std::fs::create_dir_all(crate::compare::scope::folder().join("log")).unwrap();
        Process::start("test contestant", Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn a_process_answers_line_by_line_and_ends_with_its_value() {
        let mut process = shell("echo 1; while read -r line; do echo \"[$line]\"; done").unwrap();
        assert_eq!(*process.hello(), 1);
        assert_eq!(process.ask("2, 3").unwrap(), serde_json::json!([2, 3]));
        let start = Instant::now();
        drop(process);
        assert!(start.elapsed() < ENDS_WITHIN);
    }

    #[test]
    fn a_process_that_ends_is_named_with_its_log() {
        let error = shell("exit 1").err().unwrap().to_string();
        assert!(error.starts_with("test contestant ended"), "{error}");
        assert!(error.ends_with("test-contestant.log"), "{error}");
        let mut process = shell("echo 1; read -r line").unwrap();
        let error = process.ask("x").unwrap_err().to_string();
        assert_eq!(error, "no answer to `x`");
    }
}
