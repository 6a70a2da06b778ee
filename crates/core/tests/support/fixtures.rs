//! Short spellings of the values that every test needs.

use sluicegate_core::{
    BucketId, Configuration, EntityId, EpochMillis, LevelVersions, LimitName, Millitokens, Refill,
    Resource, Rule, Rules, StoredRules,
};

/// The start of every schedule, in epoch milliseconds: a day boundary plus an odd rest.
pub(crate) const T0: i64 = 1_769_608_800_123;

pub(crate) fn milli(amount: i64) -> Millitokens {
    Millitokens::new(amount).unwrap()
}

pub(crate) fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

pub(crate) fn name(limit: &str) -> LimitName {
    LimitName::new(limit).unwrap()
}

pub(crate) fn bucket_id() -> BucketId {
    BucketId { entity: EntityId::new("u").unwrap(), resource: Resource::new("r").unwrap() }
}

/// A burst and a refill amount in millitokens, a refill period in milliseconds.
pub(crate) fn rule(burst: i64, amount: i64, period_ms: i64) -> Rule {
    Rule::new(milli(burst), Refill::new(milli(amount), period_ms).unwrap()).unwrap()
}

/// Limits stored in the table in a version.
pub(crate) fn stored(version: u64, rules: &[(&str, Rule)], dropped: &[&str]) -> Configuration {
    let rules: Rules = rules.iter().map(|(limit, rule)| (name(limit), *rule)).collect();
    let stored = StoredRules {
        rules,
        dropped: dropped
            .iter()
            .map(|limit| (name(limit), LevelVersions([0, 0, 0, version])))
            .collect(),
        versions: LevelVersions([0, 0, 0, version]),
        ..StoredRules::default()
    };
    Configuration { stored: Some(stored), ..Configuration::default() }
}
