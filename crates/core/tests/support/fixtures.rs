//! Short spellings of the values that every test needs.

use sluicegate_core::fixtures::bucket;
pub(crate) use sluicegate_core::fixtures::{at, by_calendar, milli, name, rule};
use sluicegate_core::{BucketId, Configuration, LevelVersions, Rule, Rules, StoredRules};

/// The start of every schedule, in epoch milliseconds: a day boundary plus an odd rest.
pub(crate) const T0: i64 = 1_769_608_800_123;

pub(crate) fn bucket_id() -> BucketId {
    bucket("u", "r")
}

/// Limits stored in the table in a version.
pub(crate) fn stored(version: u64, rules: &[(&str, Rule)], deleted: &[&str]) -> Configuration {
    let rules: Rules = rules.iter().map(|(limit, rule)| (name(limit), *rule)).collect();
    let stored = StoredRules {
        rules,
        deleted: deleted
            .iter()
            .map(|limit| (name(limit), LevelVersions([0, 0, 0, version])))
            .collect(),
        versions: LevelVersions([0, 0, 0, version]),
        ..StoredRules::default()
    };
    Configuration { stored: Some(stored), ..Configuration::default() }
}
