//! A table whose calls behave as a test sets.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluicegate::error::{NoConnection, SetupError};
use sluicegate::store::TableError;

use crate::intercept::{Call, intercepting};
use crate::support::Memory;

/// The treatment of one call.
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
    /// It finds no connection, after this time.
    Refuse(Duration),
}

/// A table in memory whose next calls are treated as the script says; without one they are
/// answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scripted {
    pub(crate) memory: Memory,
    writes: Arc<Mutex<VecDeque<Act>>>,
    reads: Arc<Mutex<VecDeque<Act>>>,
    /// The treatment of calls that the script does not name.
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

    /// Sets the treatment of calls that the script does not name.
    pub(crate) fn always(&self, act: Act) {
        *self.others.lock().unwrap() = Some(act);
    }

    /// The number of calls since the last call of this.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.swap(0, Ordering::Relaxed)
    }

    async fn intercept<T, E: From<TableError>>(
        &self,
        call: Call<'_>,
        done: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let script = if matches!(call, Call::Read) { &self.reads } else { &self.writes };
        let act = script.lock().unwrap().pop_front();
        let act = act.or(*self.others.lock().unwrap()).unwrap_or(Act::Answer);
        match act {
            Act::Answer => done.await,
            Act::Slow(time) => {
                tokio::time::sleep(time).await;
                done.await
            }
            Act::Hang => std::future::pending().await,
            Act::LoseReply => {
                let _ = done.await;
                Err(TableError::Unconfirmed("the connection was closed".into()).into())
            }
            Act::Deny => Err(TableError::Setup(SetupError::Denied("no permission".into())).into()),
            Act::Refuse(time) => {
                tokio::time::sleep(time).await;
                Err(TableError::Unconfirmed(NoConnection("refused".into()).into()).into())
            }
            Act::Throttle => Err(TableError::Throttled("more than it takes".into()).into()),
        }
    }
}

intercepting!(Scripted, memory);
