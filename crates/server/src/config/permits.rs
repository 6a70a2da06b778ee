//! The ids of permits.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// The ids of permits. All servers that share a store need the same keys.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Permits {
    /// The file with the key that signs ids: at least 32 bytes. Absent: a random key, so that only
    /// the process that granted a permit can settle it.
    pub key_file: Option<PathBuf>,
    /// The environment variable with that key, instead of a file.
    pub key_env: Option<String>,
    /// The file with the key before, whose ids are still good.
    pub previous_key_file: Option<PathBuf>,
    /// The environment variable with the key before.
    pub previous_key_env: Option<String>,
    /// The time in which a permit can be settled, in seconds.
    #[schemars(range(min = 1, max = 86_400))]
    pub valid_for_s: u32,
}

impl Default for Permits {
    fn default() -> Self {
        Self {
            key_file: None,
            key_env: None,
            previous_key_file: None,
            previous_key_env: None,
            valid_for_s: 3_600,
        }
    }
}
