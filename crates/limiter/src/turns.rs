//! Requests that wait for tokens take turns: first come, first served, among a limiter and its
//! clones.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quick_cache::sync::Cache;
use sluicegate_core::BucketId;
use tokio::sync::Mutex;

/// The most buckets with a queue. If one is forgotten while a task waits, only fairness is lost.
const BUCKETS_MAX: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Turns {
    queues: Cache<BucketId, Arc<BucketQueue>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { queues: Cache::new(BUCKETS_MAX) }
    }
}

/// The tasks that wait for one bucket. The lock is handed on in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct BucketQueue {
    head: Mutex<()>,
    waiting: AtomicUsize,
}

/// A place in a queue, left when dropped.
pub(crate) struct QueueSlot<'a> {
    queue: &'a BucketQueue,
}

impl Turns {
    pub(crate) fn of(&self, bucket: &BucketId) -> Arc<BucketQueue> {
        let Ok(queue) =
            self.queues.get_or_insert_with(bucket, || Ok::<_, Infallible>(Arc::default()));
        queue
    }
}

impl BucketQueue {
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
