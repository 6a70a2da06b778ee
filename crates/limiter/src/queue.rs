//! Waiting for tokens, first come first served among all limiters that were cloned of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quick_cache::sync::Cache;
use sluicegate_core::BucketId;
use tokio::sync::Mutex;

/// The most buckets with a queue. If one is forgotten while a task waits, only fairness is lost.
const QUEUES_MAX: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Queues {
    queues: Cache<BucketId, Arc<Queue>>,
}

impl Default for Queues {
    fn default() -> Self {
        Self { queues: Cache::new(QUEUES_MAX) }
    }
}

/// The tasks that wait for one bucket. The lock is handed on in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    head: Mutex<()>,
    waiting: AtomicUsize,
}

/// A place in a queue, left when dropped.
pub(crate) struct QueueSlot<'a> {
    queue: &'a Queue,
}

impl Queues {
    pub(crate) fn of(&self, bucket: &BucketId) -> Arc<Queue> {
        let made = self
            .queues
            .get_or_insert_with(bucket, || Ok::<_, std::convert::Infallible>(Arc::default()));
        match made {
            Ok(queue) => queue,
            Err(never) => match never {},
        }
    }
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn join(&self) -> QueueSlot<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        QueueSlot { queue: self }
    }
}

impl QueueSlot<'_> {
    /// Waits until every task that joined earlier has left.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.queue.head.lock().await
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
