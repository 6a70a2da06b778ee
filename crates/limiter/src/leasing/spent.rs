//! The cost of tokens that came from the store.

use sluicegate_core::WritePath;

use crate::store::{BucketGrant, Grant};

/// The cost of getting tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) path: Option<WritePath>,
    pub(super) attempts: u32,
    pub(super) write_units: f64,
    pub(super) read_units: f64,
}

impl Spent {
    pub(super) fn granted(self, parts: impl IntoIterator<Item = BucketGrant>) -> Grant {
        let Self { path, attempts, write_units, read_units } = self;
        let parts = parts.into_iter().collect();
        Grant { parts, path, attempts, write_units, read_units }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.path = other.path.or(self.path);
        self.attempts += other.attempts;
        self.write_units += other.write_units;
        self.read_units += other.read_units;
    }
}
