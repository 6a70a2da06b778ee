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
            Ok(listed) => listed,
            Err(error) if self.mode == Mode::Follow => {
                let error = chain(&error);
                tracing::warn!(error, "shards could not be listed; asking again");
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

/// Poisoned checkpoints are still right: each is replaced as a whole.
pub(super) fn lock(checkpoints: &Mutex<Checkpoints>) -> MutexGuard<'_, Checkpoints> {
    checkpoints.lock().unwrap_or_else(PoisonError::into_inner)
}
