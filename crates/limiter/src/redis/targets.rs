//! Resolves the buckets of a request and starts the script call on them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_core::{BucketId, EntityId, EpochMillis};

use super::script::Call;
use super::script_bucket::{ScriptBucket, SentAt};
use super::{RedisStore, TimeSource};
use crate::clock::Clock;
use crate::error::InvalidRequest;
use crate::store::{Cascade, Request};

impl RedisStore {
    /// The buckets of a request: the entity's own, and its parent's if it cascades.
    pub(super) fn targets(&self, request: &Request) -> Result<Vec<ScriptBucket>, InvalidRequest> {
        let target = |entity: &EntityId, rules| {
            let bucket = BucketId { entity: entity.clone(), resource: request.resource.clone() };
            let configuration = Arc::new(self.configured.of(&bucket, rules)?);
            Ok::<_, InvalidRequest>(ScriptBucket { bucket, configuration })
        };
        let parent = match &request.cascade {
            Cascade::No => None,
            Cascade::To(parent) => Some(parent.clone()),
            Cascade::Stored => self.keys.parent(&request.entity),
        };
        let mut targets = vec![target(&request.entity, &request.limits)?];
        if let Some(parent) = parent {
            if self.connection.is_cluster() && !self.keys.share_slot(&request.entity, &parent) {
                return Err(InvalidRequest::CrossSlot { entity: request.entity.clone(), parent });
            }
            targets
                .push(target(&parent, request.parent_limits.as_ref().unwrap_or(&request.limits))?);
        }
        Ok(targets)
    }

    /// A call on these buckets, without arguments.
    pub(super) fn call(&self, targets: &[ScriptBucket]) -> Call {
        let keys = targets.iter().map(|target| self.keys.key(&target.bucket)).collect();
        Call { keys, args: Vec::with_capacity(6) }
    }

    /// The first numbers of a packed request.
    pub(super) fn sent(&self, clock: &dyn Clock, attempts_in_doubt: u32) -> SentAt {
        SentAt { now_ms: self.clock_argument(clock), attempts_in_doubt }
    }

    /// The time that a script gets: the clock's, or a negative one if the script must ask its
    /// server.
    pub(super) fn clock_argument(&self, clock: &dyn Clock) -> i64 {
        match self.time {
            TimeSource::Caller => clock.now().get(),
            TimeSource::Server => -1,
        }
    }

    /// Learns the server's time from an answer that just came.
    pub(super) fn note_time(&self, clock: &dyn Clock, at_server: Option<EpochMillis>) {
        if self.time == TimeSource::Server
            && let Some(at_server) = at_server
        {
            let ahead_ms = at_server.get() - clock.now().get();
            self.server_ahead_ms.store(ahead_ms, Ordering::Relaxed);
        }
    }
}
