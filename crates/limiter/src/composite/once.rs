//! The calls of a correction that is made once: the write that makes it is a transaction that also
//! leaves a mark.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_core::{BucketId, Counts};

use super::calls::transact;
use super::composite_store::CompositeStore;
use super::table_call::{Calls, PendingCall, TableCall};
use crate::table::{Mark, Table};

/// The calls of one correction with a mark.
pub(super) struct MarkedCalls<'a, T> {
    store: &'a CompositeStore<T>,
    mark: Mark,
    was_marked: Arc<AtomicBool>,
}

impl<'a, T: Table> MarkedCalls<'a, T> {
    pub(super) fn new(store: &'a CompositeStore<T>, mark: Mark) -> Self {
        Self { store, mark, was_marked: Arc::default() }
    }

    /// True if the mark was there before the last write.
    pub(super) fn was_marked(&self) -> bool {
        self.was_marked.load(Ordering::Relaxed)
    }
}

impl<T: Table> Calls for MarkedCalls<'_, T> {
    fn call(&self, asked: TableCall) -> PendingCall {
        let TableCall::Write(buckets, write) = asked else { return self.store.call(asked) };
        // A write without an id is upkeep. Here it follows the correction, so the mark exists.
        if write.id.is_none() {
            return self.store.call(TableCall::Write(buckets, write));
        }
        let (table, mark) = (self.store.table.clone(), self.mark.clone());
        let was_marked = self.was_marked.clone();
        Box::pin(async move {
            transact(table.as_ref(), &buckets, &write, Some((&mark, &was_marked))).await
        })
    }

    fn count(&self, counts: Counts, buckets: &[BucketId]) {
        // The mark keeps a lost write from taking effect twice.
        self.store.count(Counts { ambiguous: 0, ..counts }, buckets);
    }
}
