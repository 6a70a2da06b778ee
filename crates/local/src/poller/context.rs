//! The state that the workers of a run share.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::value::RawValue;
use sluicegate_processor::chain;
use tokio::sync::watch;
use tokio::time::Instant;

use super::handler::Handler;
use super::record::created_s;
use super::settings::Settings;
use super::source::{Checkpoints, Shard, Source};
use crate::Error;

/// Records have the time at which they were made in whole seconds.
const CREATED_ROUNDING: Duration = Duration::from_secs(1);

/// Says if a run ends at the end of the shards or waits there for more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Drain,
    Follow,
}

/// The data that the workers of one run share.
pub(super) struct Context<'a, S, H> {
    pub(super) source: &'a S,
    pub(super) handler: &'a H,
    pub(super) settings: &'a Settings,
    pub(super) checkpoints: &'a Mutex<Checkpoints>,
    /// The shards whose newest read failed; an empty name stands for the list of shards.
    pub(super) failing: &'a Mutex<BTreeSet<String>>,
    pub(super) mode: Mode,
    /// The time at which the run began, by two clocks.
    pub(super) begin: (SystemTime, Instant),
    pub(super) stop: watch::Receiver<bool>,
}

impl<S: Source, H: Handler> Context<'_, S, H> {
    /// Shards that are neither running nor finished and do not wait for a parent. A parent that is
    /// no longer listed was trimmed: nothing of it is left to wait for.
    pub(super) async fn startable(
        &self,
        finished: &BTreeSet<String>,
        active: &BTreeSet<String>,
    ) -> Result<Vec<Shard>, Error> {
        let listed = match self.source.shards().await {
            Ok(listed) => {
                self.note_answer("");
                listed
            }
            Err(error) if self.mode == Mode::Follow => {
                self.note_failure("", &error);
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let ids: BTreeSet<&str> = listed.iter().map(|shard| shard.id.as_str()).collect();
        let waits_for = |parent: &str| ids.contains(parent) && !finished.contains(parent);
        let startable = listed.iter().filter(|shard| {
            !finished.contains(&shard.id)
                && !active.contains(&shard.id)
                && !shard.parent.as_deref().is_some_and(waits_for)
        });
        Ok(startable.cloned().collect())
    }

    /// True if a drain need not read on: the record was made after it began. `behind_s` is the
    /// least time by which the clock of this machine is behind, as the records of the shard show.
    pub(super) fn is_after_begin(&self, record: &RawValue, behind_s: &mut f64) -> bool {
        let (begin, instant) = self.begin;
        let begin_s = begin.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let Some(created_s) = created_s(record).filter(|_| self.mode == Mode::Drain) else {
            return false;
        };
        *behind_s = behind_s.max(created_s - begin_s - instant.elapsed().as_secs_f64());
        created_s - begin_s - *behind_s > CREATED_ROUNDING.as_secs_f64()
    }

    pub(super) fn note_answer(&self, shard: &str) {
        if lock(self.failing).remove(shard) {
            tracing::info!("the stream can be read again");
        }
    }

    /// Says that the source is asked again. Of the failures in a row, the first is a warning.
    pub(super) fn note_failure(&self, shard: &str, error: &Error) {
        let error = chain(error);
        if lock(self.failing).insert(shard.to_owned()) {
            tracing::warn!(error, "the stream cannot be read; asking again");
        } else {
            tracing::debug!(error, "the stream cannot be read; asking again");
        }
    }

    pub(super) fn stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Sleeps, but a signal to stop ends the sleep.
    pub(super) async fn pause(&self, duration: Duration) {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = tokio::time::sleep(duration) => {}
            _ = stop.wait_for(|stopping| *stopping) => {}
        }
    }
}

/// The value in a poisoned lock is still right: each change is made as a whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
