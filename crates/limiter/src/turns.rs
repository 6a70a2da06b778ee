//! Requests that wait for tokens take turns: first come, first served, among a limiter and its
//! clones.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quick_cache::sync::Cache;
use sluicegate_core::BucketId;
use tokio::sync::Mutex;

/// The most buckets with a line. If one is forgotten while a task waits, only fairness is lost.
const BUCKETS_MAX: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Turns {
    lines: Cache<BucketId, Arc<WaitingLine>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { lines: Cache::new(BUCKETS_MAX) }
    }
}

/// The tasks that wait for one bucket. The lock is handed on in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct WaitingLine {
    head: Mutex<()>,
    waiting: AtomicUsize,
}

/// A place in a line, left when dropped.
pub(crate) struct PlaceInLine<'a> {
    line: &'a WaitingLine,
}

impl Turns {
    pub(crate) fn of(&self, bucket: &BucketId) -> Arc<WaitingLine> {
        let Ok(line) =
            self.lines.get_or_insert_with(bucket, || Ok::<_, Infallible>(Arc::default()));
        line
    }
}

impl WaitingLine {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn join(&self) -> PlaceInLine<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        PlaceInLine { line: self }
    }
}

impl PlaceInLine<'_> {
    /// Waits until every task that joined earlier has left.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.line.head.lock().await
    }
}

impl Drop for PlaceInLine<'_> {
    fn drop(&mut self) {
        self.line.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
