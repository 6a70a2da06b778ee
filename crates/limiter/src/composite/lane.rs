//! The requests of this process on one bucket, or on a child's and its parent's bucket: one write
//! at a time.
//!
//! A [`WriteQueue`] decides what to do next. One of the waiting callers, the leader, does it for
//! all of them. If the leader's own request is resolved, runs out of time or is dropped, the lane
//! keeps the call that the leader awaited, and the next caller continues with it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sluicegate_core::{
    Answer, BucketId, Counts, EpochMillis, QueueSettings, RequestId, Write, WriteQueue,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::newest_image::Shared;
use super::table_call::{CallCost, Calls, Flight, Settled, TableReply};
use crate::clock::Clock;
use crate::lock::lock;
use crate::table::TableError;

/// How long the table may take to answer before it is asked again, because all callers wait for the
/// answer. At least this, and at least twice the time of its last answer; doubled each time that it
/// does not answer.
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);
const PATIENCE_MAX: Duration = Duration::from_secs(8);
/// How late a leader may be before another caller leads instead: the leader's owner may not poll
/// it.
pub(super) const LATE_MAX: Duration = Duration::from_millis(250);
/// The duration of the quickest answer before there was one, and at most.
const QUICKEST_MAX: Duration = Duration::from_millis(50);

/// The requests on one bucket, or on a child's and its parent's.
pub(crate) struct Lane {
    pub(super) buckets: Vec<BucketId>,
    /// The image that all lanes of this process on a bucket share.
    pub(super) images: Vec<Arc<Shared>>,
    pub(super) state: Mutex<LaneState>,
    /// Notified when the leader stops.
    pub(super) free: Notify,
}

pub(super) struct LaneState {
    pub(super) queue: WriteQueue<LaneWaiter>,
    /// The last write, if it may be sent again.
    pub(super) last: Option<Arc<Write>>,
    /// The call on the table; `None` while the leader awaits it.
    pub(super) flight: Option<(Flight, Instant)>,
    /// The time by which the leader acts; `None`: there is no leader.
    pub(super) led_until: Option<Instant>,
    /// Counts the leaders.
    pub(super) term: u64,
    /// The reason why the table did not do the last call.
    pub(super) table_error: Option<Arc<TableError>>,
    /// The duration of its quickest answer, [`QUICKEST_MAX`] at most.
    pub(super) quickest: Duration,
    /// How long the next answer may take.
    pub(super) patience: Duration,
    /// The time of the table's last answer.
    pub(super) replied_at: Instant,
    pub(super) latest: EpochMillis,
    /// True if several callers waited for the last answer.
    pub(super) is_shared: bool,
}

/// A caller that waits.
pub(super) struct LaneWaiter {
    pub(super) sender: oneshot::Sender<Settled>,
    pub(super) cost: CallCost,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("buckets", &self.buckets).finish_non_exhaustive()
    }
}

impl Lane {
    pub(super) fn new(
        buckets: Vec<BucketId>,
        images: Vec<Arc<Shared>>,
        settings: QueueSettings,
    ) -> Self {
        let state = LaneState {
            queue: WriteQueue::new(buckets.iter().cloned(), settings),
            last: None,
            flight: None,
            led_until: None,
            term: 0,
            table_error: None,
            quickest: QUICKEST_MAX,
            patience: ANSWERED_WITHIN,
            replied_at: Instant::now(),
            latest: EpochMillis::MIN,
            is_shared: false,
        };
        Self { buckets, images, state: Mutex::new(state), free: Notify::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LaneState> {
        lock(&self.state)
    }

    /// Lets a correction that waits drop its guards.
    pub(super) fn force(&self, id: &RequestId) {
        self.lock().queue.force(id);
    }

    /// The most that a lease with an unknown outcome took.
    #[cfg(feature = "leasing")]
    pub(super) fn unacked_lease(&self, id: &RequestId) -> Option<sluicegate_core::Amounts> {
        self.lock().queue.unacked_lease(id)
    }

    /// Takes over the images that other lanes learned of the buckets.
    pub(super) fn look(&self, state: &mut LaneState) {
        for (index, image) in self.images.iter().enumerate() {
            if let Some(known) = image.known() {
                state.queue.learn(index, &known);
            }
        }
    }

    /// Sends the callers the outcomes of their requests.
    pub(super) fn dispatch(&self, state: &mut LaneState, calls: &dyn Calls) {
        let counts = state.queue.take_counts();
        if counts != Counts::default() {
            calls.count(counts, &self.buckets);
        }
        for (LaneWaiter { sender, cost }, outcome) in state.queue.take_resolved() {
            let table_error = state.table_error.clone();
            // A caller that has just left gets none.
            drop(sender.send(Settled { outcome, cost, table_error }));
        }
    }

    /// Takes over an answer to the leader of this term; returns true if it still leads.
    pub(super) fn take_reply(
        &self,
        term: u64,
        (reply, took): (TableReply, Duration),
        calls: &dyn Calls,
        clock: &dyn Clock,
    ) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        if state.term != term {
            return false;
        }
        let waiters = state.queue.waiters().count().max(1);
        state.is_shared = waiters > 1;
        let share = 1.0 / f64::from(u32::try_from(waiters).unwrap_or(u32::MAX));
        for waiter in state.queue.waiters() {
            waiter.cost.write_units += reply.write_units * share;
            waiter.cost.read_units += reply.read_units * share;
        }
        state.quickest = state.quickest.min(took);
        if reply.answer == Answer::Lost {
            state.patience = state.patience.saturating_mul(2).min(PATIENCE_MAX);
        } else {
            state.replied_at = Instant::now();
            state.patience = ANSWERED_WITHIN.max(took.saturating_mul(2)).min(PATIENCE_MAX);
        }
        if matches!(
            reply.answer,
            Answer::Written(_) | Answer::ConditionFailed(_) | Answer::Unusable
        ) {
            // It is not sent again.
            state.last = None;
        }
        state.table_error = reply.table_error.map(Arc::new);
        state.latest = clock.now();
        state.queue.answered(reply.answer, state.latest);
        for (index, image) in self.images.iter().enumerate() {
            if let Some(known) = state.queue.known(index) {
                image.learn(known.clone());
            }
        }
        self.dispatch(state, calls);
        state.led_until = Some(Instant::now() + LATE_MAX);
        true
    }

    /// Drops state that no caller waits for any more.
    pub(super) fn tidy(state: &mut LaneState) {
        if state.led_until.is_none() && state.queue.is_idle() && state.flight.take().is_some() {
            state.queue.answered(Answer::Lost, state.latest);
        }
    }
}
