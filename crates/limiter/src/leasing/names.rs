//! Data that many buckets share, in one copy: names, and the configuration that was seen last.

use std::sync::{Arc, Mutex};

use quick_cache::sync::Cache;
use sluicegate_core::{Configuration, LimitName, Resource};

use crate::lock::lock;

/// The most kinds that are remembered; one that was forgotten is stored twice.
const KINDS_MAX: usize = 1_000;

/// The data common to buckets of one resource with the same limits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) resource: Resource,
    /// The limit of each slot.
    pub(super) limits: Vec<LimitName>,
}

#[derive(Debug)]
pub(super) struct Names {
    kinds: Cache<Kind, Arc<Kind>>,
    /// The configuration that was seen last.
    last: Mutex<Option<Arc<Configuration>>>,
}

impl Default for Names {
    fn default() -> Self {
        Self { kinds: Cache::new(KINDS_MAX), last: Mutex::default() }
    }
}

impl Names {
    pub(super) fn shared(&self, kind: Kind) -> Arc<Kind> {
        if let Some(shared) = self.kinds.get(&kind) {
            return shared;
        }
        let shared = Arc::new(kind.clone());
        self.kinds.insert(kind, shared.clone());
        shared
    }

    /// The configuration that was seen last, if it is equal: a copy takes a kilobyte.
    pub(super) fn same(&self, configuration: &Arc<Configuration>) -> Arc<Configuration> {
        let mut last = lock(&self.last);
        match last.as_ref().filter(|last| *last == configuration) {
            Some(last) => last.clone(),
            None => last.insert(configuration.clone()).clone(),
        }
    }
}
