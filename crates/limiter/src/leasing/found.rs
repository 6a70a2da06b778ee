//! The buckets that a prepared call takes from. They are compared with the known data from time to
//! time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use sluicegate_core::{Configuration, EntityId};

use super::leased_bucket::LeasedPart;
use crate::store::BucketGrant;

/// The time between comparisons of a request's buckets with the known data, in milliseconds.
pub(super) const FOUND_MS: i64 = 500;

/// The buckets that a prepared call takes from, with the amounts. An entity may get another parent,
/// and a parent may get limits that it did not have.
pub(super) struct Found {
    pub(super) parts: Vec<LeasedPart>,
    /// The limits of the first bucket for another entity: those that the request names. The stored
    /// ones are the preparing entity's own.
    pub(super) for_others: Arc<Configuration>,
    /// The next comparison with the known data, epoch milliseconds.
    pub(super) until_ms: AtomicI64,
    /// The result of a later comparison that differed.
    pub(super) next: OnceLock<Box<Found>>,
    /// The number of results before this one.
    pub(super) changes: u32,
}

/// The most changes that a prepared call follows. Permits refer to earlier results, so each result
/// is kept. After the last change, the call is resolved each time, as other requests are.
pub(super) const CHANGES_MAX: u32 = 64;

impl Found {
    pub(super) fn new(parts: Vec<LeasedPart>, now_ms: i64, changes: u32) -> Self {
        let until_ms = AtomicI64::new(now_ms.saturating_add(FOUND_MS));
        let explicit = |part: &LeasedPart| part.grant.configuration.explicit.clone();
        let for_others = Configuration::explicit(parts.first().map(explicit).unwrap_or_default());
        Self { parts, for_others: Arc::new(for_others), until_ms, next: OnceLock::new(), changes }
    }

    /// True if the next comparison is not due, or has been due for at most `more_ms`. False if the
    /// clock was set back.
    pub(super) fn is_used_for(&self, more_ms: i64, now_ms: i64) -> bool {
        let left_ms = self.until_ms.load(Ordering::Relaxed).saturating_sub(now_ms);
        (-more_ms..=FOUND_MS).contains(&left_ms)
    }

    /// True if the buckets, with a parent that is not charged, and the amounts are the same.
    pub(super) fn is_same(&self, parts: &[LeasedPart]) -> bool {
        let is_same = |(one, other): (&LeasedPart, &LeasedPart)| {
            let parent = |part: &LeasedPart| {
                part.grant.uncharged_parent.as_ref().map(|parent| parent.bucket.clone())
            };
            one.grant.bucket == other.grant.bucket
                && parent(one) == parent(other)
                && one.demands == other.demands
                && one.bucket.layout == other.bucket.layout
        };
        self.parts.len() == parts.len() && self.parts.iter().zip(parts).all(is_same)
    }

    /// The first part, for the bucket of another entity.
    pub(super) fn first_part(&self, entity: EntityId) -> BucketGrant {
        let mut part = self.parts[0].grant.clone();
        part.bucket.entity = entity;
        part.configuration = self.for_others.clone();
        part
    }
}
