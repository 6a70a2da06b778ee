//! One bucket of a request, and what is known of it.

use std::sync::Arc;

use sluicegate_core::{Amounts, BucketId, CompositeBucket, Configuration, EpochMillis, standings};

use super::images::{Entry, Known};
use crate::error::LimitStatus;
use crate::store::Part;

/// One bucket of a request.
pub(super) struct Side {
    pub(super) bucket: BucketId,
    pub(super) amounts: Amounts,
    pub(super) configuration: Arc<Configuration>,
    pub(super) entry: Arc<Entry>,
    pub(super) known: Option<Known>,
    /// The table said so during this call.
    pub(super) is_fresh: bool,
    /// Whether its levels may be read again: not twice in a call.
    pub(super) may_update: bool,
    /// Whether its item may be brought to the configuration before "no" is said: once in a call.
    pub(super) may_reconfigure: bool,
}

impl Side {
    pub(super) fn image(&self) -> Option<&Arc<CompositeBucket>> {
        self.known.as_ref().and_then(|known| known.image.as_ref())
    }

    /// The image, if it is older than this call. What becomes of a newer one says nothing about how
    /// far to trust an old one, and would be counted twice.
    pub(super) fn guess(&self) -> Option<&Arc<CompositeBucket>> {
        self.image().filter(|_| !self.is_fresh)
    }

    pub(super) fn learn(
        &mut self,
        image: Option<Arc<CompositeBucket>>,
        now: EpochMillis,
        is_authoritative: bool,
    ) {
        let known = Known { image, as_of: now, is_authoritative };
        self.entry.learn(known.clone());
        self.known = Some(known);
        self.is_fresh = is_authoritative;
    }

    /// Takes over what other tasks learned meanwhile.
    pub(super) fn catch_up(&mut self) {
        let newest = self.entry.known();
        // Two answers may come in one millisecond, and a derived image is no answer.
        self.is_fresh &= match (&newest, &self.known) {
            (Some(newest), Some(known)) => newest.is_same(known),
            _ => false,
        };
        self.known = newest.or(self.known.take());
    }

    /// How what is asked stands to this image.
    pub(super) fn standings(
        &self,
        image: Option<&CompositeBucket>,
        now: EpochMillis,
    ) -> Vec<LimitStatus> {
        standings(image, &self.amounts, &self.configuration, now)
            .into_iter()
            .filter(|standing| self.amounts.contains_key(&standing.limit))
            .map(|standing| LimitStatus::new(&self.bucket.entity, standing))
            .collect()
    }

    pub(super) fn part(&self) -> Part {
        Part {
            bucket: self.bucket.clone(),
            amounts: self.amounts.clone(),
            image: self.image().cloned(),
            configuration: self.configuration.clone(),
        }
    }
}
