//! The programs and people that may call the server.

use schemars::JsonSchema;
use serde::Deserialize;

/// A program or a person that calls the server with a bearer token.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Caller {
    /// The name of the caller in log lines.
    pub name: String,
    /// The SHA-256 of the token, in hexadecimal: `printf %s "$TOKEN" | sha256sum`.
    #[schemars(regex(pattern = "^[0-9a-fA-F]{64}$"))]
    pub sha256: String,
    /// The operations that the caller may use.
    #[schemars(length(min = 1))]
    pub roles: Vec<Role>,
}

/// A set of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Acquire tokens, correct and release permits.
    Acquire,
    /// Read balances, usage, budgets and metrics.
    Read,
    /// Change and delete stored limits and entities.
    Operate,
}
