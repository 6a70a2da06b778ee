//! Data that many buckets share, in one copy: names, and the configuration that was seen last.

use std::sync::{Arc, Mutex};

use quick_cache::sync::Cache;
use sluicegate_core::{Configuration, LimitName, Resource};

use crate::lock::lock;

/// The most layouts that are remembered; one that was forgotten is stored twice.
const LAYOUTS_MAX: usize = 1_000;

/// The data common to buckets of one resource with the same limits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct BucketLayout {
    pub(super) resource: Resource,
    /// The limit of each slot.
    pub(super) limits: Vec<LimitName>,
}

/// Keeps one copy of equal data for all buckets.
#[derive(Debug)]
pub(super) struct Interner {
    layouts: Cache<BucketLayout, Arc<BucketLayout>>,
    /// The configuration that was seen last.
    last: Mutex<Option<Arc<Configuration>>>,
}

impl Default for Interner {
    fn default() -> Self {
        Self { layouts: Cache::new(LAYOUTS_MAX), last: Mutex::default() }
    }
}

impl Interner {
    /// The shared copy of a layout. If there is none, this one becomes it.
    pub(super) fn shared(&self, layout: BucketLayout) -> Arc<BucketLayout> {
        if let Some(shared) = self.layouts.get(&layout) {
            return shared;
        }
        let shared = Arc::new(layout.clone());
        self.layouts.insert(layout, shared.clone());
        shared
    }

    /// Returns the shared copy if it is equal; otherwise keeps this one as the shared copy. A copy
    /// takes a kilobyte.
    pub(super) fn same(&self, configuration: &Arc<Configuration>) -> Arc<Configuration> {
        let mut last = lock(&self.last);
        match last.as_ref().filter(|last| *last == configuration) {
            Some(last) => last.clone(),
            None => last.insert(configuration.clone()).clone(),
        }
    }
}
