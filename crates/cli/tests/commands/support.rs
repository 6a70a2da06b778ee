//! Runs the binary against a table of its own.

use std::process::{Command, Output};

use serde_json::Value;
use sluicegate_testkit::{RunningEngine, engines_under_test};

/// A table, and the binary to use on it.
pub(crate) struct Shell {
    pub(crate) engine: RunningEngine,
    pub(crate) table: String,
}

/// Runs `test` with a fresh table on every engine under test.
pub(crate) async fn on_every_engine(test: impl AsyncFn(&Shell)) {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let table = engine.create_table().await;
        let shell = Shell { engine, table };
        test(&shell).await;
        shell.engine.stop().await;
    }
}

/// The output of a run of the binary.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        Self { code: output.status.code().unwrap(), out, err }
    }
}

impl Said {
    /// The JSON that it printed, if it ended with this code.
    #[track_caller]
    pub(crate) fn json(&self, code: i32) -> Value {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("not JSON: {}", self.out))
    }

    /// The table or text that it printed, if it ended with this code.
    #[track_caller]
    pub(crate) fn text(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        &self.out
    }

    /// The one line of its error, if it ended with this code.
    #[track_caller]
    pub(crate) fn error(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        assert!(self.err.starts_with("error: "), "{}", self.err);
        &self.err
    }
}

/// The binary in an environment without AWS except dummy credentials.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local");
    command
}

/// Runs it to its end without blocking a runtime's thread.
pub(crate) fn finish(command: &mut Command) -> Said {
    tokio::task::block_in_place(|| Said::from(command.output().unwrap()))
}

impl Shell {
    /// Runs `sluicegate` with these words on the table, as a user of `sluicegate local` would.
    pub(crate) fn run(&self, line: &str) -> Said {
        self.run_words(&line.split(' ').collect::<Vec<_>>())
    }

    /// As [`run`](Self::run), for words with spaces in them.
    pub(crate) fn run_words(&self, words: &[&str]) -> Said {
        finish(self.command().args(words))
    }

    /// A command of the binary for the table.
    pub(crate) fn command(&self) -> Command {
        let mut command = command();
        command
            .env("AWS_ENDPOINT_URL", self.engine.endpoint_url())
            .env("SLUICEGATE_TABLE", &self.table);
        command
    }
}
