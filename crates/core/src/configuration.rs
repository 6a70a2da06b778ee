//! The limits that a bucket should have, and how its item differs from them.
//!
//! The limits have two sources. *Stored* limits come from the table, with the versions of their
//! levels. An item remembers the versions that it follows, so a process with an older copy of some
//! level goes by the limits in the item instead of setting them back. *Explicit* limits come with a
//! request and have no version. They override stored limits of the same name, and never remove any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::keys::LimitsScope;
use crate::{
    Amounts, CompositeBucket, ConfigStamp, EpochMillis, LevelVersions, LimitName, Recency, Rule,
    StoredLimits,
};

/// The greatest number of limits that a bucket is given. A claim names all of them in one
/// expression, which holds 4 KB and 300 operators.
pub const LIMITS_MAX: usize = 40;

/// Rules by limit.
pub type Rules = BTreeMap<LimitName, Rule>;

/// The limits stored in the table for one bucket, all levels taken together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct StoredRules {
    /// The limits, each from the narrowest level that names it.
    pub rules: Rules,
    /// Limits that some level deleted and no level names. For each, the versions by which levels
    /// deleted it.
    pub deleted: BTreeMap<LimitName, LevelVersions>,
    /// The versions of the levels.
    pub versions: LevelVersions,
    /// The time of the newest change of any level, for items whose stamp is a time; `None`: nothing
    /// was ever stored.
    pub updated_at: Option<EpochMillis>,
    /// The stamp that the bucket's item had before a strongly consistent read of these levels. They
    /// replace what an item with this stamp follows, even if they look older: then a level was
    /// deleted by hand, or the table was restored.
    pub outranks: Option<ConfigStamp>,
    /// True if a limit is stored for this entity itself: its bucket never expires.
    pub never_expires: bool,
}

impl StoredRules {
    /// The levels of a bucket, narrowest first, taken together: each limit comes from the first
    /// level that names it.
    pub fn of_levels<'a>(levels: impl IntoIterator<Item = &'a StoredLimits>) -> Self {
        let mut together = Self::default();
        for level in levels {
            let never_expires =
                matches!(level.scope, LimitsScope::Entity(_) | LimitsScope::EntityResource(..));
            together.versions.set(&level.scope, level.version);
            together.updated_at = together.updated_at.max(Some(level.updated_at));
            together.never_expires |= never_expires && !level.rules.is_empty();
            for (limit, version) in &level.deleted {
                together.deleted.entry(limit.clone()).or_default().set(&level.scope, *version);
            }
            for (limit, rule) in &level.rules {
                together.rules.entry(limit.clone()).or_insert(*rule);
            }
        }
        let Self { rules, deleted, .. } = &mut together;
        deleted.retain(|limit, _| !rules.contains_key(limit));
        together
    }

    /// Compares this copy with the one that an item follows.
    fn recency(&self, stamp: &ConfigStamp) -> Recency {
        let recency = match stamp {
            ConfigStamp::None => self.versions.compare(&LevelVersions::default()),
            ConfigStamp::Epoch(epoch) if self.updated_at < Some(*epoch) => Recency::Older,
            ConfigStamp::Epoch(_) => Recency::Newer,
            ConfigStamp::Versions(versions) => self.versions.compare(versions),
        };
        match recency {
            Recency::Older | Recency::Mixed if self.outranks.as_ref() == Some(stamp) => {
                Recency::Newer
            }
            recency => recency,
        }
    }
}

/// The limits that a bucket should have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// Limits that came with the request.
    pub explicit: Arc<Rules>,
    /// Limits from the table; `None`: the table was not read.
    pub stored: Option<StoredRules>,
}

impl Configuration {
    /// Limits that come with a request; the table is not asked.
    #[must_use]
    pub fn explicit(rules: impl Into<Arc<Rules>>) -> Self {
        Self { explicit: rules.into(), stored: None }
    }

    /// The rule of a limit.
    #[must_use]
    pub fn rule(&self, limit: &LimitName) -> Option<Rule> {
        let stored = || self.stored.as_ref()?.rules.get(limit);
        self.explicit.get(limit).or_else(stored).copied()
    }

    /// True if an operator deleted the limit, and no request named it.
    #[must_use]
    pub fn is_deleted(&self, limit: &LimitName) -> bool {
        let stored = self.stored.as_ref();
        self.rule(limit).is_none()
            && stored.is_some_and(|stored| stored.deleted.contains_key(limit))
    }

    /// This configuration, with those explicit limits of `other` that it does not name, and with
    /// the stored limits of `other` if it has read none; `None`: nothing is added.
    #[must_use]
    pub fn completed_by(&self, other: &Self) -> Option<Self> {
        let is_missing = |(limit, _): &(&LimitName, &Rule)| self.rule(limit).is_none();
        let mut missing = other.explicit.iter().filter(is_missing).peekable();
        let adds_stored = self.stored.is_none() && other.stored.is_some();
        if missing.peek().is_none() && !adds_stored {
            return None;
        }
        let mut both = self.clone();
        if missing.peek().is_some() {
            let missing = missing.map(|(limit, rule)| (limit.clone(), *rule));
            Arc::make_mut(&mut both.explicit).extend(missing);
        }
        if adds_stored {
            both.stored.clone_from(&other.stored);
        }
        Some(both)
    }

    /// All rules. A rule of the request overrides one of the table.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let mut rules = self.stored.as_ref().map(|stored| stored.rules.clone()).unwrap_or_default();
        rules.extend(self.explicit.iter().map(|(limit, rule)| (limit.clone(), *rule)));
        rules
    }

    /// The rules of a new item: all of them, or only those of the asked limits if there are more
    /// than [`LIMITS_MAX`].
    pub(crate) fn rules_with_room(&self, amounts: &Amounts) -> Rules {
        let mut rules = self.rules();
        if rules.len() > LIMITS_MAX {
            rules.retain(|limit, _| amounts.contains_key(limit));
        }
        rules
    }

    /// The stamp of a new item: the stored limits that it follows.
    #[must_use]
    pub fn stamp(&self) -> ConfigStamp {
        self.stored.as_ref().map(|stored| stored.versions.into()).unwrap_or_default()
    }

    /// True if the bucket must not expire.
    #[must_use]
    pub fn never_expires(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.never_expires)
    }

    /// True if the item follows a change of some level that this copy does not know. The caller
    /// then reads the levels again before it decides, by a strongly consistent read. If they cannot
    /// be read, the item keeps the stored limits that it follows.
    #[must_use]
    pub fn is_behind(&self, image: &CompositeBucket) -> bool {
        let recency = self.stored.as_ref().map(|stored| stored.recency(&image.config_stamp));
        matches!(recency, Some(Recency::Older | Recency::Mixed))
    }

    /// True if a claim with this configuration leaves the item's limits and their stamp as they
    /// are. If the item has no room for the limits that it lacks, they do not count.
    #[must_use]
    pub fn is_followed_by(&self, image: &CompositeBucket) -> bool {
        let mut differences = self.compare(image);
        differences.drop_unasked_if_crowded(image, &Amounts::new());
        differences.is_empty()
    }

    /// True if the bucket has the limit, or gets it with the next claim.
    #[must_use]
    pub fn has_limit(&self, image: Option<&CompositeBucket>, limit: &LimitName) -> bool {
        let keeps = |image: &CompositeBucket| {
            image.limits.contains_key(limit) && !self.compare(image).removed.contains(limit)
        };
        self.rule(limit).is_some() || image.is_some_and(keeps)
    }

    /// The differences of the item from this configuration.
    pub(crate) fn compare(&self, image: &CompositeBucket) -> Differences {
        let mut differences = Differences::default();
        for (limit, rule) in self.explicit.iter() {
            differences.want(image, limit, *rule, true);
        }
        let Some(stored) = &self.stored else { return differences };
        // If a rule differs at the same versions, it is an explicit limit of another process. If it
        // were set back, the processes would undo each other's writes without end.
        let is_newer = match stored.recency(&image.config_stamp) {
            Recency::Older | Recency::Mixed => return differences,
            Recency::Same => false,
            Recency::Newer => true,
        };
        let implicit = stored.rules.iter().filter(|(limit, _)| !self.explicit.contains_key(*limit));
        for (limit, rule) in implicit {
            differences.want(image, limit, *rule, is_newer);
        }
        if is_newer {
            differences.versions = Some(stored.versions);
            let deleted = stored.deleted.iter().filter(|(limit, versions)| {
                image.limits.contains_key(*limit)
                    && !self.explicit.contains_key(*limit)
                    && image.config_stamp.is_before(versions)
            });
            differences.removed.extend(deleted.map(|(limit, _)| limit.clone()));
        }
        differences
    }
}

/// The differences of an item from a configuration.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// Limits that the item lacks.
    pub(crate) missing: Rules,
    /// Limits whose rule changed.
    pub(crate) changed: Rules,
    /// Limits that the configuration has deleted.
    pub(crate) removed: BTreeSet<LimitName>,
    /// The versions that the item is to follow; `None`: its stamp stays.
    pub(crate) versions: Option<LevelVersions>,
}

impl Differences {
    fn want(&mut self, image: &CompositeBucket, limit: &LimitName, rule: Rule, may_change: bool) {
        match image.limits.get(limit) {
            None => _ = self.missing.insert(limit.clone(), rule),
            Some(balance) if balance.rule != rule && may_change => {
                self.changed.insert(limit.clone(), rule);
            }
            Some(_) => {}
        }
    }

    /// If the item has no room for all missing limits, leaves out those that are not asked for. An
    /// item of another producer may have more limits than [`LIMITS_MAX`].
    pub(crate) fn drop_unasked_if_crowded(&mut self, image: &CompositeBucket, amounts: &Amounts) {
        if self.is_crowded(image) {
            self.missing.retain(|limit, _| amounts.contains_key(limit));
        }
    }

    /// True if the item has no room for the limits that it lacks.
    pub(crate) fn is_crowded(&self, image: &CompositeBucket) -> bool {
        !self.missing.is_empty() && image.limits.len() + self.missing.len() > LIMITS_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.missing.is_empty() && !self.has_change()
    }

    /// True if anything but missing limits differs.
    pub(crate) fn has_change(&self) -> bool {
        !self.changed.is_empty() || !self.removed.is_empty() || self.versions.is_some()
    }
}

#[cfg(test)]
#[path = "configuration_tests.rs"]
mod tests;
