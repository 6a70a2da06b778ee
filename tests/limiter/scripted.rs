//! A table that a test tells what to do with each call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluicegate::{
    BucketId, Consistency, ReadItems, SetupError, Table, TogetherError, Trouble, WriteError,
    Written,
};
use sluicegate_core::WritePlan;
use sluicegate_core::keys::ItemKey;

use crate::support::Memory;

/// What becomes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// It is done and answered.
    Answer,
    /// It is done and answered after this time.
    Slow(Duration),
    /// It is neither done nor answered.
    Hang,
    /// It is done and the answer is lost.
    LoseReply,
    /// The table answers that a permission is missing.
    Deny,
    /// The table answers that it is throttled.
    Throttle,
}

/// Memory whose next calls are acted upon as the script says; without one they are answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scripted {
    pub(crate) memory: Memory,
    writes: Arc<Mutex<VecDeque<Act>>>,
    reads: Arc<Mutex<VecDeque<Act>>>,
    /// What becomes of calls that the script does not name.
    others: Arc<Mutex<Option<Act>>>,
    calls: Arc<AtomicU64>,
}

impl Scripted {
    pub(crate) fn on_writes(&self, acts: impl IntoIterator<Item = Act>) {
        self.writes.lock().unwrap().extend(acts);
    }

    pub(crate) fn on_reads(&self, acts: impl IntoIterator<Item = Act>) {
        self.reads.lock().unwrap().extend(acts);
    }

    /// From now on, what becomes of calls that the script does not name.
    pub(crate) fn always(&self, act: Act) {
        *self.others.lock().unwrap() = Some(act);
    }

    /// Calls since this was asked last.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.swap(0, Ordering::Relaxed)
    }

    async fn act<T, E: From<Trouble>>(
        &self,
        script: &Mutex<VecDeque<Act>>,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let act = script.lock().unwrap().pop_front();
        let act = act.or(*self.others.lock().unwrap()).unwrap_or(Act::Answer);
        match act {
            Act::Answer => call.await,
            Act::Slow(time) => {
                tokio::time::sleep(time).await;
                call.await
            }
            Act::Hang => std::future::pending().await,
            Act::LoseReply => {
                let _ = call.await;
                Err(Trouble::Away("the connection was closed".into()).into())
            }
            Act::Deny => Err(Trouble::Setup(SetupError::Denied("no permission".into())).into()),
            Act::Throttle => Err(Trouble::Throttled("more than it takes".into()).into()),
        }
    }
}

impl Table for Scripted {
    async fn write(&self, bucket: &BucketId, plan: &WritePlan) -> Result<Written, WriteError> {
        self.act(&self.writes, self.memory.write(bucket, plan)).await
    }

    async fn write_together(
        &self,
        writes: &[(BucketId, WritePlan)],
        token: &str,
    ) -> Result<f64, TogetherError> {
        self.act(&self.writes, self.memory.write_together(writes, token)).await
    }

    async fn read(&self, keys: &[ItemKey], consistency: Consistency) -> Result<ReadItems, Trouble> {
        self.act(&self.reads, self.memory.read(keys, consistency)).await
    }
}
