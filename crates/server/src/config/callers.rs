//! The programs and people that may call the server.

use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A program or a person that calls the server with a bearer token.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Caller {
    /// The name of the caller in the access log.
    pub name: String,
    /// The SHA-256 of the token, in hexadecimal: `printf %s "$TOKEN" | sha256sum`.
    #[schemars(with = "String", regex(pattern = "^[0-9a-fA-F]{64}$"))]
    pub sha256: TokenHash,
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

impl Role {
    /// Its name in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Operate => "operate",
        }
    }
}

/// The SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of a token.
    #[must_use]
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Compares in constant time.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl TryFrom<String> for TokenHash {
    type Error = &'static str;

    /// Reads 64 hexadecimal digits.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = "not 64 hexadecimal digits; `printf %s \"$TOKEN\" | sha256sum` makes them";
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong);
        }
        let mut hash = Self([0; 32]);
        for (n, byte) in hash.0.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).map_err(|_| wrong)?;
        }
        if hash == Self::of(b"") {
            return Err("the hash of no token at all: was the variable empty?");
        }
        Ok(hash)
    }
}
