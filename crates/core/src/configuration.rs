//! What a bucket's limits should be, and how an item differs from that.
//!
//! Two sources say so. *Stored* limits come from the table, with the instant of their newest
//! change, the epoch: an item remembers the epoch it follows, so a process with an older copy
//! adopts what the item says instead of setting it back. *Explicit* limits come with a request,
//! have no epoch, win in what they name, and never remove anything.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};
use smol_str::{SmolStr, ToSmolStr};

use crate::keys::{Digest, LimitsScope};
use crate::{Amounts, CompositeBucket, EpochMillis, LimitName, Rule, StoredLimits};

/// Limits that are written to a bucket at most: a claim names all of them in one expression, which
/// holds 4 KB and 300 operators.
pub const LIMITS_MAX: usize = 40;

/// Rules by limit.
pub type Rules = BTreeMap<LimitName, Rule>;

/// The limits stored in the table for one bucket, all levels taken together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredRules {
    /// The limits, each from the narrowest level that names it.
    pub rules: Rules,
    /// Limits that some level deleted and no level names.
    pub dropped: BTreeSet<LimitName>,
    /// The newest change of any level, deletions included; `None`: nothing was ever stored.
    pub epoch: Option<EpochMillis>,
    /// Some limit is stored for this very entity: its bucket never expires.
    pub is_personal: bool,
}

impl StoredRules {
    /// The levels of a bucket taken together, narrowest first: each limit comes from the first level
    /// that names it.
    pub fn of_levels<'a>(levels: impl IntoIterator<Item = &'a StoredLimits>) -> Self {
        let mut together = Self::default();
        for level in levels {
            let is_personal =
                matches!(level.scope, LimitsScope::Entity(_) | LimitsScope::EntityResource(..));
            together.epoch = together.epoch.max(Some(level.updated_at));
            together.is_personal |= is_personal && !level.rules.is_empty();
            together.dropped.extend(level.dropped.iter().cloned());
            for (limit, rule) in &level.rules {
                together.rules.entry(limit.clone()).or_insert(*rule);
            }
        }
        let Self { rules, dropped, .. } = &mut together;
        dropped.retain(|limit| !rules.contains_key(limit));
        together
    }
}

/// What the limits of a bucket should be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Limits that came with the request.
    pub explicit: Rules,
    /// Limits from the table; `None` when nobody looked there.
    pub stored: Option<StoredRules>,
}

impl Configuration {
    /// Limits that come with a request; the table is not asked.
    #[must_use]
    pub const fn explicit(rules: Rules) -> Self {
        Self { explicit: rules, stored: None }
    }

    /// The rule of a limit.
    #[must_use]
    pub fn rule(&self, limit: &LimitName) -> Option<Rule> {
        let stored = || self.stored.as_ref()?.rules.get(limit);
        self.explicit.get(limit).or_else(stored).copied()
    }

    /// All rules, those of the request before those of the table.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let mut rules = self.stored.as_ref().map(|stored| stored.rules.clone()).unwrap_or_default();
        rules.extend(self.explicit.iter().map(|(limit, rule)| (limit.clone(), *rule)));
        rules
    }

    /// The rules of a new item: all of them, or those of what is asked where it has no room for all.
    pub(crate) fn rules_with_room(&self, amounts: &Amounts) -> Rules {
        let mut rules = self.rules();
        if rules.len() > LIMITS_MAX {
            rules.retain(|limit, _| amounts.contains_key(limit));
        }
        rules
    }

    /// The newest change of what is stored.
    #[must_use]
    pub fn epoch(&self) -> Option<EpochMillis> {
        self.stored.as_ref().and_then(|stored| stored.epoch)
    }

    /// Whether the bucket must not expire.
    #[must_use]
    pub fn is_personal(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.is_personal)
    }

    /// Whether the item follows a newer change than this copy knows: fetch it again.
    #[must_use]
    pub fn is_older_than(&self, image: &CompositeBucket) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.epoch < image.config_epoch)
    }

    /// Whether the item has these limits, but for those that it has no room for.
    #[must_use]
    pub fn is_followed_by(&self, image: &CompositeBucket) -> bool {
        let mut differences = self.compare(image);
        differences.fit(image, &Amounts::new());
        differences.is_empty()
    }

    /// What would bring the item to this configuration.
    pub(crate) fn compare(&self, image: &CompositeBucket) -> Differences {
        let mut differences = Differences::default();
        for (limit, rule) in &self.explicit {
            differences.want(image, limit, *rule, true);
        }
        let Some(stored) = &self.stored else { return differences };
        if stored.epoch < image.config_epoch {
            return differences;
        }
        // At the same epoch somebody's explicit limits stand in the item: setting them back would
        // start a fight that nobody wins.
        let is_newer = stored.epoch > image.config_epoch;
        let implicit = stored.rules.iter().filter(|(limit, _)| !self.explicit.contains_key(*limit));
        for (limit, rule) in implicit {
            differences.want(image, limit, *rule, is_newer);
        }
        if is_newer {
            differences.epoch = stored.epoch;
            let dropped = stored.dropped.iter().filter(|limit| {
                image.limits.contains_key(*limit) && !self.explicit.contains_key(*limit)
            });
            differences.removed.extend(dropped.cloned());
        }
        differences
    }
}

/// What would bring an item to a configuration.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// Limits that the item lacks.
    pub(crate) missing: Rules,
    /// Limits whose rule changed.
    pub(crate) changed: Rules,
    /// Limits that the configuration dropped.
    pub(crate) removed: BTreeSet<LimitName>,
    /// The epoch that the item would follow, if it moves.
    pub(crate) epoch: Option<EpochMillis>,
}

impl Differences {
    fn want(&mut self, image: &CompositeBucket, limit: &LimitName, rule: Rule, may_change: bool) {
        match image.limits.get(limit) {
            None => _ = self.missing.insert(limit.clone(), rule),
            Some(bucket) if bucket.rule != rule && may_change => {
                self.changed.insert(limit.clone(), rule);
            }
            Some(_) => {}
        }
    }

    /// Leaves missing limits out that nobody asks for where the item has no room for all of them.
    /// An item of another producer may have more than is written here.
    pub(crate) fn fit(&mut self, image: &CompositeBucket, amounts: &Amounts) {
        if self.is_crowded(image) {
            self.missing.retain(|limit, _| amounts.contains_key(limit));
        }
    }

    /// Whether the item has no room for the limits that it lacks.
    pub(crate) fn is_crowded(&self, image: &CompositeBucket) -> bool {
        !self.missing.is_empty() && image.limits.len() + self.missing.len() > LIMITS_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.missing.is_empty() && !self.has_change()
    }

    /// Whether anything but missing limits differs.
    pub(crate) fn has_change(&self) -> bool {
        !self.changed.is_empty() || !self.removed.is_empty() || self.epoch.is_some()
    }
}

/// Fingerprint of all rules of an item: the guards of a write are computed from the rules, and one
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

#[cfg(test)]
#[path = "configuration_tests.rs"]
mod tests;
