//! The store of the balances, and the server's way of using it.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// The store of the balances: one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// A table in DynamoDB. Region and credentials come from the AWS environment.
    pub dynamodb: Option<Dynamodb>,
    /// A Redis server.
    pub redis: Option<Redis>,
    /// The embedded engine, for trying the server out.
    pub embedded: Option<Embedded>,
}

/// A table in DynamoDB.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dynamodb {
    /// The name of the table.
    pub table: String,
    /// Another endpoint than that of the region.
    pub endpoint_url: Option<String>,
    /// Another region than that of the AWS environment.
    pub region: Option<String>,
}

/// A Redis server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    /// The URL, like `redis://127.0.0.1:6379`. One with `rediss://` encrypts connections: the server
    /// trusts the root certificates of the system, or those of `SSL_CERT_FILE` or `SSL_CERT_DIR`
    /// instead.
    pub url: String,
    /// The beginning of every key.
    pub prefix: Option<String>,
}

/// The embedded engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Embedded {
    /// The file of the balances. Absent: in memory.
    pub file: Option<PathBuf>,
}

/// Tokens that the server takes ahead of need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Leasing {
    /// Says if tokens are debited before they are handed out.
    pub mode: Mode,
    /// The tokens of a limit that each server may hand out before they are debited; for the mode
    /// `write_behind`.
    #[schemars(range(min = 1))]
    pub threshold: u32,
}

impl Default for Leasing {
    fn default() -> Self {
        Self { mode: Mode::Strict, threshold: 100 }
    }
}

/// The order of debiting and handing out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Tokens are debited first: never above a limit.
    Strict,
    /// Tokens are debited afterwards: each server may exceed a limit by the threshold.
    WriteBehind,
}

/// The answer to a request while the store is unavailable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnUnavailable {
    /// Admit, and count nothing.
    #[default]
    Allow,
    /// Refuse, with 503.
    Deny,
    /// Decide by buckets in the process, and debit the store afterwards.
    Local,
}
