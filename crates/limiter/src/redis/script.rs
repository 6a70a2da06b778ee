//! The scripts, and how one is sent: by its digest, and as text to a server that does not know it.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use super::connection::Connection;
use crate::table::Trouble;

/// A script and its digest.
pub(super) struct Script {
    text: &'static str,
    digest: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: Script = {
            const TEXT: &str = concat!(include_str!("lua/bucket.lua"), "\n", include_str!($file));
            Script {
                text: TEXT,
                digest: LazyLock::new(|| redis::Script::new(TEXT).get_hash().to_owned()),
            }
        };
    };
}

script!(ACQUIRE, "lua/acquire.lua");
script!(ADJUST, "lua/adjust.lua");
script!(PEEK, "lua/peek.lua");
script!(LEASE, "lua/lease.lua");

/// What a script is called with.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<Arg>,
}

/// One argument.
#[derive(Debug)]
pub(super) enum Arg {
    Text(String),
    Number(i64),
}

impl Call {
    pub(super) fn number(&mut self, number: i64) {
        self.args.push(Arg::Number(number));
    }

    pub(super) fn text(&mut self, text: impl Into<String>) {
        self.args.push(Arg::Text(text.into()));
    }

    fn command(&self, by: &str, script: &str) -> Cmd {
        let size = script.len() + self.keys.iter().map(String::len).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + self.keys.len() + self.args.len(), size + 256);
        command.arg(by).arg(script).arg(self.keys.len()).arg(&self.keys);
        for arg in &self.args {
            match arg {
                Arg::Text(text) => command.arg(text),
                Arg::Number(number) => command.arg(*number),
            };
        }
        command
    }
}

impl Script {
    /// Runs it once. A server that was restarted, or told to forget its scripts, has done nothing.
    pub(super) async fn run(
        &self,
        connection: &Connection,
        call: &Call,
    ) -> Result<Vec<Value>, Trouble> {
        let answer = match connection.send(&call.command("EVALSHA", &self.digest)).await {
            Err(error) if is_unknown(&error) => {
                connection.send(&call.command("EVAL", self.text)).await
            }
            answer => answer,
        };
        match answer {
            Ok(Value::Array(reply)) => Ok(reply),
            Ok(other) => Err(super::trouble::odd(format!("{other:?}").into())),
            Err(error) => Err(super::trouble::of(error)),
        }
    }
}

fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
