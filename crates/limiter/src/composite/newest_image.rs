//! The newest image of one bucket that this process has, from an answer or computed from a write.

use std::sync::Mutex;

use sluicegate_core::KnownImage;

use crate::lock::lock;

/// The newest image of a bucket, for all of its lanes.
#[derive(Debug, Default)]
pub(super) struct NewestImage(Mutex<Option<KnownImage>>);

impl NewestImage {
    pub(super) fn known(&self) -> Option<KnownImage> {
        lock(&self.0).clone()
    }

    /// Remembers an image, unless one with a newer refill time is known: answers may come out of
    /// order.
    pub(super) fn learn_unless_older(&self, new: KnownImage) {
        let mut known = lock(&self.0);
        if known.as_ref().is_none_or(|old| !new.is_older_than(old)) {
            *known = Some(new);
        }
    }
}
