//! Versions of stored levels: which changes a copy of the limits contains, and which an item follows.
//!
//! Each level has a counter that every change and deletion moves in the table. Levels are cached
//! independently and stamped by different clocks, so neither a time nor one number for all of them
//! says which of two copies is the newer: they are compared level by level.

use std::fmt;

use crate::EpochMillis;
use crate::keys::LimitsScope;

/// The versions of the four levels of a bucket, narrowest first. Zero: the level was never stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LevelVersions(pub [u64; 4]);

/// The versions of one copy compared with those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recency {
    /// The same.
    Same,
    /// Newer in some level and older in none.
    Newer,
    /// Older in some level and newer in none.
    Older,
    /// Newer in some level and older in another.
    Mixed,
}

/// The stamp of an item: the stored limits that it follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ConfigStamp {
    /// Nothing: none were stored for it, or another producer wrote it.
    #[default]
    None,
    /// The newest `updated_at` of any level, as items had it before levels had versions.
    Epoch(EpochMillis),
    /// The versions of all levels.
    Versions(LevelVersions),
}

impl LevelVersions {
    /// Versions as an item holds them, `2.0.5.3`; `None`: it is not that.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let mut versions = [0; 4];
        for version in &mut versions {
            *version = numbers.next()??;
        }
        numbers.next().is_none().then_some(Self(versions))
    }

    /// Sets the version of the level that a scope is.
    pub fn set(&mut self, scope: &LimitsScope, version: u64) {
        let [personal, entity, resource, system] = &mut self.0;
        *match scope {
            LimitsScope::EntityResource(..) => personal,
            LimitsScope::Entity(_) => entity,
            LimitsScope::Resource(_) => resource,
            LimitsScope::System => system,
        } = version;
    }

    /// Compares these versions with others.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Recency {
        let levels = || self.0.iter().zip(&other.0);
        match (levels().any(|(own, other)| own > other), levels().any(|(own, other)| own < other)) {
            (false, false) => Recency::Same,
            (true, false) => Recency::Newer,
            (false, true) => Recency::Older,
            (true, true) => Recency::Mixed,
        }
    }
}

impl ConfigStamp {
    /// True if an item with this stamp has yet to follow a deletion: some level is behind the version
    /// that the deletion made. Otherwise a limit of that name came into the item later, with a
    /// request.
    pub(crate) fn is_before(&self, deletion: &LevelVersions) -> bool {
        let mut levels = deletion.0.into_iter();
        match self {
            Self::None => true,
            Self::Epoch(epoch) => levels.any(|version| version > epoch.get().unsigned_abs()),
            Self::Versions(LevelVersions(versions)) => {
                levels.zip(versions).any(|(deletion, version)| deletion > *version)
            }
        }
    }
}

impl fmt::Display for LevelVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [personal, entity, resource, system] = self.0;
        write!(f, "{personal}.{entity}.{resource}.{system}")
    }
}

impl From<LevelVersions> for ConfigStamp {
    /// A table without stored limits has no stamp.
    fn from(versions: LevelVersions) -> Self {
        if versions == LevelVersions::default() { Self::None } else { Self::Versions(versions) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn versions_are_read_as_they_were_written(versions: [u64; 4]) {
            let versions = LevelVersions(versions);
            prop_assert_eq!(LevelVersions::parse(&versions.to_string()), Some(versions));
        }
    }

    #[test]
    fn versions_are_four_numbers() {
        for text in ["", "1", "1.2.3", "1.2.3.4.5", "1.2.3.x", "1.2.3.-4", "1..3.4"] {
            assert_eq!(LevelVersions::parse(text), None, "{text}");
        }
    }

    #[test]
    fn versions_are_compared_level_by_level() {
        let of = |own, other| LevelVersions(own).compare(&LevelVersions(other));
        assert_eq!(of([1, 2, 3, 4], [1, 2, 3, 4]), Recency::Same);
        assert_eq!(of([1, 0, 0, 1], [1, 0, 0, 0]), Recency::Newer);
        assert_eq!(of([1, 0, 0, 0], [1, 0, 0, 7]), Recency::Older);
        assert_eq!(of([2, 0, 0, 0], [1, 0, 0, 7]), Recency::Mixed);
    }
}
