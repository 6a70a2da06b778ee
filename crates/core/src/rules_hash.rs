//! The fingerprint of the rules of an item.

use sha2::{Digest as _, Sha256};
use smol_str::{SmolStr, ToSmolStr};

use crate::keys::Digest;
use crate::{LimitName, Rule};

/// Fingerprint of all rules of an item: the conditions of a write are computed from the rules, and one
/// comparison is cheaper than three conditions per limit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RulesHash(SmolStr);

impl RulesHash {
    /// The fingerprint of these rules: the first 64 bits of SHA-256 over names and parameters.
    pub fn of<'a>(rules: impl IntoIterator<Item = (&'a LimitName, &'a Rule)>) -> Self {
        let mut hasher = Sha256::new();
        for (limit, rule) in rules {
            hasher.update(limit.as_str());
            // No name contains it.
            hasher.update([0]);
            for number in [
                rule.capacity().get(),
                rule.burst().get(),
                rule.refill().amount().get(),
                rule.refill().period_ms(),
            ] {
                hasher.update(number.to_be_bytes());
            }
            if let Some(calendar) = rule.refill().calendar() {
                hasher.update(calendar.to_string());
            }
        }
        let first =
            hasher.finalize().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Self(Digest(first).to_smolstr())
    }

    /// A fingerprint as an item holds it.
    #[must_use]
    pub fn stored(text: &str) -> Self {
        Self(SmolStr::new(text))
    }

    /// The fingerprint as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
