//! The ids of permits.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// The ids of permits. All servers that share a store need the same keys.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Permits {
    /// The keys of ids, of at least 32 bytes each. The first one signs, and the ids of all are good.
    /// Absent: a random key, so that only the process that granted a permit can correct it.
    pub keys: Vec<KeySource>,
    /// The time in which a permit can be corrected or released, in seconds.
    #[schemars(range(min = 1, max = 86_400))]
    pub valid_for_s: u32,
}

/// The place of a key.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    /// A file with the key.
    File(PathBuf),
    /// An environment variable with the key.
    Env(String),
}

impl Default for Permits {
    fn default() -> Self {
        Self { keys: Vec::new(), valid_for_s: 3_600 }
    }
}
