//! Names and rules of limits that many buckets share: one copy for all of them.

use std::sync::{Arc, Mutex, PoisonError};

use quick_cache::sync::Cache;
use sluicegate_core::{Configuration, LimitName};

/// Different sets of limits that are remembered; a set that is forgotten is stored twice.
const SETS_MAX: usize = 1_000;

#[derive(Debug)]
pub(super) struct Names {
    sets: Cache<Vec<LimitName>, Arc<[LimitName]>>,
    /// The configuration that was seen last.
    last: Mutex<Option<Arc<Configuration>>>,
}

impl Default for Names {
    fn default() -> Self {
        Self { sets: Cache::new(SETS_MAX), last: Mutex::default() }
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

    /// The one that was seen last, if it says the same: a copy takes a kilobyte.
    pub(super) fn same(&self, configuration: &Arc<Configuration>) -> Arc<Configuration> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last.as_ref().filter(|last| *last == configuration) {
            Some(last) => last.clone(),
            None => last.insert(configuration.clone()).clone(),
        }
    }
}
