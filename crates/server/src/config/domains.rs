//! The rules of Envoy's rate limit service.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::amount::Amount;

/// Envoy's rate limit service.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Envoy {
    /// The answer to a domain without rules, and to a descriptor that no rule matches.
    #[serde(default)]
    pub unknown: Unknown,
    /// The domains, as Envoy's filter names them.
    pub domains: Vec<Domain>,
}

/// The answer to a descriptor that the configuration does not know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// Not limited.
    #[default]
    Admit,
    /// Refused.
    Refuse,
}

/// The rules of one domain. The first rule that matches a descriptor holds.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// The `domain` of Envoy's rate limit filter.
    pub domain: String,
    /// The rules, in the order in which they are tried.
    pub rules: Vec<Rule>,
}

/// The bucket and the amounts for the descriptors that match.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The entries that a descriptor must have, and their values; `*` is any value. A descriptor
    /// with further entries matches, too.
    #[serde(rename = "match")]
    pub entries: BTreeMap<String, String>,
    /// The entity; `{key}` is the value of that entry.
    pub entity: String,
    /// The resource; `{key}` is the value of that entry.
    pub resource: String,
    /// The limits of the bucket, like `rpm=100/min`. Absent: the server's `limits`, and those
    /// that are stored under other names.
    #[serde(default)]
    pub limits: Vec<String>,
    /// The limits that a hit takes from, and the amount that it takes of each: tokens, or money in the
    /// currency's unit.
    #[schemars(extend("minProperties" = 1))]
    pub consume: BTreeMap<String, Amount>,
    /// Counts the hits whatever the balance, which may go below zero: for the use that Envoy learns
    /// from a response (`apply_on_stream_done`).
    #[serde(default)]
    pub never_refuses: bool,
}
