//! Takes in changes of stored limits and entities that this process made.

use sluicegate_core::keys::LimitsScope;
use sluicegate_core::{EntityId, EntityRecord, EpochMillis, StoredLimits};

use super::composite_store::CompositeStore;
use crate::table::Table;

impl<T: Table> CompositeStore<T> {
    /// Takes in the record of an entity that this process stored or deleted just now; an error: the
    /// record is unknown.
    pub(crate) fn note_entity<E>(
        &self,
        entity: &EntityId,
        record: Result<Option<&EntityRecord>, E>,
        now: EpochMillis,
    ) {
        self.directory.note_entity(entity, record.ok(), now);
    }

    /// Takes in stored limits that this process changed just now; `None`: the stored limits are
    /// unknown.
    pub(crate) fn note_limits(
        &self,
        scope: &LimitsScope,
        stored: Option<&StoredLimits>,
        now: EpochMillis,
    ) {
        self.directory.note_limits(scope, stored, now);
    }
}
