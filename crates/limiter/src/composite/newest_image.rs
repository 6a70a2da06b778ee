//! The newest answer on one bucket that any task of this process received.

use std::sync::Mutex;

use sluicegate_core::Known;

use crate::lock::lock;

/// The newest knowledge of a bucket, for all of its lanes.
#[derive(Debug, Default)]
pub(super) struct NewestImage(Mutex<Option<Known>>);

impl NewestImage {
    pub(super) fn known(&self) -> Option<Known> {
        lock(&self.0).clone()
    }

    /// Remembers an answer, unless an answer with a newer claim is known: answers may come out of
    /// order.
    pub(super) fn learn_if_newer(&self, new: Known) {
        let mut known = lock(&self.0);
        if known.as_ref().is_none_or(|old| !new.is_older_than(old)) {
            *known = Some(new);
        }
    }
}
