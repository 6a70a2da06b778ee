//! Short spellings of the values that most tests need, for the tests of this workspace only (feature
//! `fixtures`).
#![expect(clippy::unwrap_used, reason = "a test passes values that are valid")]

use crate::{BucketId, EntityId, EpochMillis, LimitName, Millitokens, Refill, Resource, Rule};

/// An instant, in epoch milliseconds.
///
/// # Panics
/// If it is not between 1970 and 9999.
#[must_use]
pub fn at(millis: i64) -> EpochMillis {
    EpochMillis::new(millis).unwrap()
}

/// An amount in millitokens.
///
/// # Panics
/// If it is out of range.
#[must_use]
pub fn milli(amount: i64) -> Millitokens {
    Millitokens::new(amount).unwrap()
}

/// The name of a limit.
///
/// # Panics
/// If it is not allowed.
#[must_use]
pub fn name(limit: &str) -> LimitName {
    LimitName::new(limit).unwrap()
}

/// The bucket of an entity and a resource.
///
/// # Panics
/// If a name is not allowed.
#[must_use]
pub fn bucket(entity: &str, resource: &str) -> BucketId {
    BucketId { entity: EntityId::new(entity).unwrap(), resource: Resource::new(resource).unwrap() }
}

/// A calendar limit: an amount in millitokens, and its boundaries like `month@15/Europe/Berlin`.
///
/// # Panics
/// If one of them is not allowed.
#[must_use]
pub fn by_calendar(amount: i64, boundaries: &str) -> Rule {
    Rule::by_calendar(milli(amount), boundaries.parse().unwrap()).unwrap()
}

/// A rule: a burst and a refill amount in millitokens, and a refill period in milliseconds.
///
/// # Panics
/// If one of them is out of range.
#[must_use]
pub fn rule(burst: i64, amount: i64, period_ms: i64) -> Rule {
    Rule::new(milli(burst), Refill::new(milli(amount), period_ms).unwrap()).unwrap()
}
