//! The scripts, and how one is sent: by its digest, or as text to a server that does not know it.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use super::connection::Connection;
use crate::table::TableError;

/// A script and its digest.
pub(super) struct Script {
    text: &'static str,
    digest: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $first:literal, $($file:literal),+) => {
        pub(super) static $name: Script = {
            const TEXT: &str = concat!($first, $(include_str!($file), "\n"),+);
            Script {
                text: TEXT,
                digest: LazyLock::new(|| redis::Script::new(TEXT).get_hash().to_owned()),
            }
        };
    };
}

script!(ACQUIRE, "local CORRECTS = false\n", "lua/usual.lua", "lua/bucket.lua", "lua/acquire.lua");
script!(ADJUST, "local CORRECTS = true\n", "lua/usual.lua", "lua/bucket.lua", "lua/adjust.lua");
script!(PEEK, "", "lua/bucket.lua", "lua/peek.lua");
#[cfg(feature = "leasing")]
script!(LEASE, "", "lua/bucket.lua", "lua/lease.lua");
#[cfg(test)]
script!(WHOLE_ACQUIRE, "", "lua/bucket.lua", "lua/acquire.lua");
script!(WHOLE_ADJUST, "", "lua/bucket.lua", "lua/adjust.lua");

/// The arguments of a script.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn arg(&mut self, arg: impl Into<Vec<u8>>) {
        self.args.push(arg.into());
    }

    fn command(&self, by: &str, script: &str) -> Cmd {
        let size = script.len()
            + self.keys.iter().map(String::len).sum::<usize>()
            + self.args.iter().map(Vec::len).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + self.keys.len() + self.args.len(), size + 256);
        command.arg(by).arg(script).arg(self.keys.len()).arg(&self.keys);
        for arg in &self.args {
            command.arg(arg.as_slice());
        }
        command
    }
}

impl Script {
    /// Runs it once. A server that was restarted, or flushed its scripts, does not know the digest
    /// and does nothing; it then gets the text.
    pub(super) async fn run(
        &self,
        connection: &Connection,
        call: &Call,
    ) -> Result<Vec<Value>, TableError> {
        let answer = match connection.send(&call.command("EVALSHA", &self.digest)).await {
            Err(error) if is_unknown(&error) => {
                connection.send(&call.command("EVAL", self.text)).await
            }
            answer => answer,
        };
        match answer {
            Ok(Value::Array(reply)) => Ok(reply),
            // The one bucket of a usual call.
            Ok(bucket @ Value::BulkString(_)) => Ok(vec![bucket]),
            Ok(other) => Err(super::error::odd(format!("{other:?}").into())),
            Err(error) => Err(super::error::of(error)),
        }
    }
}

fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
