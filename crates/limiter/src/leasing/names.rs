//! Names of limits that many buckets share: one copy for all of them.

use std::sync::Arc;

use quick_cache::sync::Cache;
use sluicegate_core::LimitName;

/// Different sets of limits that are remembered; a set that is forgotten is stored twice.
const SETS_MAX: usize = 1_000;

#[derive(Debug)]
pub(super) struct Names {
    sets: Cache<Vec<LimitName>, Arc<[LimitName]>>,
}

impl Default for Names {
    fn default() -> Self {
        Self { sets: Cache::new(SETS_MAX) }
    }
}

impl Names {
    pub(super) fn shared(&self, limits: Vec<LimitName>) -> Arc<[LimitName]> {
        if let Some(shared) = self.sets.get(&limits) {
            return shared;
        }
        let shared: Arc<[LimitName]> = limits.clone().into();
        self.sets.insert(limits, shared.clone());
        shared
    }
}
