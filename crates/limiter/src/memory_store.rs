//! A store of composite buckets in memory.

use crate::composite::CompositeStore;
use crate::memory::MemoryTable;

/// Balances in memory: for tests of programs that use a limiter, and for a first look. They end
/// with the process.
///
/// ```
/// use sluicegate::{Limiter, MemoryStore};
///
/// let limiter = Limiter::new(MemoryStore::new());
/// ```
pub type MemoryStore = CompositeStore<MemoryTable>;

impl CompositeStore<MemoryTable> {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::with_table(MemoryTable::new())
    }
}

impl Default for CompositeStore<MemoryTable> {
    fn default() -> Self {
        Self::new()
    }
}
