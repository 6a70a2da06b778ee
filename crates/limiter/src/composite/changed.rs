//! Takes in changes of stored limits and entities that this process made.

use sluicegate_core::keys::LimitsScope;
use sluicegate_core::{EntityId, EpochMillis, StoredLimits};

use super::composite_store::CompositeStore;
use crate::table::Table;

impl<T: Table> CompositeStore<T> {
    /// Forgets an entity's record, because it was changed.
    pub(crate) fn forget_entity(&self, entity: &EntityId) {
        self.directory.forget_entity(entity);
    }

    /// Takes in stored limits that this process changed just now; `None`: the stored limits are
    /// unknown.
    pub(crate) fn note_limits(
        &self,
        scope: &LimitsScope,
        stored: Option<&StoredLimits>,
        now: EpochMillis,
    ) {
        match stored {
            Some(stored) => self.directory.note_limits(stored, now),
            None => self.directory.forget_limits(scope),
        }
    }
}
