//! The requests of this process on one bucket, or on a child's and its parent's bucket: one write
//! at a time.
//!
//! A [`WriteQueue`] decides what to do next. One of the waiting callers, the leader, does it for
//! all of them. If the leader's own request is resolved, runs out of time or is dropped, the lane
//! keeps the call that the leader awaited, and the next caller continues with it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sluicegate_core::{Answer, BucketId, Counts, EpochMillis, QueueSettings, Write, WriteQueue};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::newest_image::NewestImage;
use super::table_call::{LaneMark, LaneTable, PendingCall, Resolved, TableReply};
use crate::clock::Clock;
use crate::cost::Cost;
use crate::lock::lock;
use crate::program_metrics;
use crate::table::TableError;

/// The lower bound of `LaneState::answer_time`.
const ANSWER_TIME_MIN: Duration = Duration::from_millis(500);
/// Its upper bound.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(8);
/// A leader may be late by this much before another caller takes over. A leader is late if its task
/// does not poll it.
pub(super) const LATE_MAX: Duration = Duration::from_millis(250);
/// The first value, and the upper bound, of `LaneState::quickest`.
const QUICKEST_MAX: Duration = Duration::from_millis(50);

/// The requests on one bucket, or on a child's and its parent's.
pub(crate) struct Lane {
    pub(super) buckets: Vec<BucketId>,
    /// For each bucket its newest image, which all lanes of this process share.
    pub(super) images: Vec<Arc<NewestImage>>,
    /// The mark of the one correction of this lane, if the correction is made once.
    pub(super) mark: Option<Arc<LaneMark>>,
    pub(super) state: Mutex<LaneState>,
    /// Notified when the leader stops.
    pub(super) leader_stopped: Notify,
}

pub(super) struct LaneState {
    pub(super) queue: WriteQueue<LaneWaiter>,
    /// The last write that was counted as an attempt. If the queue sends it again unchanged, it is
    /// not counted again.
    pub(super) counted_write: Option<Arc<Write>>,
    /// True if the last call was a write that counts as an attempt.
    pub(super) last_call_counts: bool,
    /// The call that a leader left in flight when it stopped, and the time at which it was sent.
    /// The next leader awaits this call.
    pub(super) parked_call: Option<(PendingCall, Instant)>,
    /// The time by which the leader must have acted; after it, another caller takes over. `None`:
    /// there is no leader.
    pub(super) leader_due_at: Option<Instant>,
    /// Counts the leaders.
    pub(super) term: u64,
    /// The error of the last call that was answered, or that its leader gave up as silent. A call
    /// that was dropped because nobody waited for it, or because its leader was late, changes
    /// nothing here. After [`TableError::Unconfirmed`] the table may have done the call, unless a
    /// [`NoConnection`](crate::error::NoConnection) is inside.
    pub(super) table_error: Option<Arc<TableError>>,
    /// The duration of that call, if it found no connection.
    pub(super) connect_failed_in: Option<Duration>,
    /// The duration of the table's quickest answer, [`QUICKEST_MAX`] at most.
    pub(super) quickest: Duration,
    /// The time that the next answer may take. After it, the leader asks again, because all callers
    /// of the lane wait for its one call. It is twice as long as the last answer took, and doubles
    /// after each silence.
    pub(super) answer_time: Duration,
    /// The number of the table's answers.
    pub(super) replies: u64,
    /// The time of the last action or answer, by the clock of the leader that saw it.
    pub(super) last_event_at: EpochMillis,
    /// True if several callers waited for the last answer.
    pub(super) had_several_waiters: bool,
}

/// A caller that waits.
pub(super) struct LaneWaiter {
    pub(super) sender: oneshot::Sender<Resolved>,
    pub(super) cost: Cost,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("buckets", &self.buckets).finish_non_exhaustive()
    }
}

impl Lane {
    pub(super) fn new(
        buckets: Vec<BucketId>,
        images: Vec<Arc<NewestImage>>,
        settings: QueueSettings,
        mark: Option<Arc<LaneMark>>,
    ) -> Arc<Self> {
        let state = LaneState {
            queue: WriteQueue::new(buckets.iter().cloned(), settings),
            counted_write: None,
            last_call_counts: false,
            parked_call: None,
            leader_due_at: None,
            term: 0,
            table_error: None,
            connect_failed_in: None,
            quickest: QUICKEST_MAX,
            answer_time: ANSWER_TIME_MIN,
            replies: 0,
            last_event_at: EpochMillis::MIN,
            had_several_waiters: false,
        };
        let (state, leader_stopped) = (Mutex::new(state), Notify::new());
        Arc::new(Self { buckets, images, mark, state, leader_stopped })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LaneState> {
        lock(&self.state)
    }

    /// Takes in the images that other lanes learned of the buckets.
    pub(super) fn adopt_images(&self, state: &mut LaneState) {
        for (index, image) in self.images.iter().enumerate() {
            if let Some(known) = image.known() {
                state.queue.learn_unless_older(index, &known);
            }
        }
    }

    /// Hands over the counts of the queue, and sends the callers the outcomes of their requests.
    pub(super) fn deliver_outcomes(&self, state: &mut LaneState, table: &dyn LaneTable) {
        let mut counts = state.queue.drain_counts();
        if self.mark.is_some() {
            // The mark keeps a lost write from taking effect twice.
            counts.ambiguous = 0;
        }
        if counts != Counts::default() {
            table.note_counts(counts, &self.buckets);
        }
        Self::send_resolved(state);
    }

    /// Sends each caller the outcome of its request.
    pub(super) fn send_resolved(state: &mut LaneState) {
        for (LaneWaiter { sender, cost }, outcome) in state.queue.drain_resolved() {
            let table_error = state.table_error.clone();
            // A caller that has just left gets no outcome.
            drop(sender.send(Resolved { outcome, cost, table_error }));
        }
    }

    /// Takes in an answer to the leader of this term; false, and nothing changes, if that leader no
    /// longer leads. Without a clock, the time of the last event stands for that of the answer.
    pub(super) fn apply_reply(
        &self,
        state: &mut LaneState,
        term: u64,
        (reply, took): (TableReply, Duration),
        clock: Option<&dyn Clock>,
    ) -> bool {
        if state.term != term {
            return false;
        }
        let waiters = state.queue.callers_of_call().count().max(1);
        state.had_several_waiters = waiters > 1;
        let share = 1.0 / f64::from(u32::try_from(waiters).unwrap_or(u32::MAX));
        for waiter in state.queue.callers_of_call() {
            waiter.cost.write_units += reply.write_units * share;
            waiter.cost.read_units += reply.read_units * share;
        }
        program_metrics::spent(reply.write_units, reply.read_units);
        state.connect_failed_in = (reply.answer == Answer::NotSent).then_some(took);
        match reply.answer {
            Answer::Lost => {
                state.answer_time = state.answer_time.saturating_mul(2).min(ANSWER_TIME_MAX);
            }
            Answer::NotSent => {
                // A request that entered meanwhile has counted nothing, and stays at zero.
                let counted = u32::from(std::mem::take(&mut state.last_call_counts));
                for waiter in state.queue.callers_of_call() {
                    waiter.cost.attempts = waiter.cost.attempts.saturating_sub(counted);
                }
                if counted > 0 {
                    state.counted_write = None;
                }
            }
            _ => {
                state.quickest = state.quickest.min(took);
                state.replies += 1;
                let twice = took.saturating_mul(2);
                state.answer_time = ANSWER_TIME_MIN.max(twice).min(ANSWER_TIME_MAX);
            }
        }
        if matches!(
            reply.answer,
            Answer::Written(_) | Answer::ConditionFailed(_) | Answer::TableUnusable
        ) {
            // This write is not sent again.
            state.counted_write = None;
        }
        state.table_error = reply.table_error.map(Arc::new);
        state.last_event_at = clock.map_or(state.last_event_at, Clock::now);
        let known = |index| state.queue.known(index).cloned();
        let before: Vec<_> = (0..self.images.len()).map(known).collect();
        state.queue.answered(reply.answer, state.last_event_at);
        // Other lanes may know newer images than this lane, so it hands on only what this reply
        // told.
        for ((index, image), before) in self.images.iter().enumerate().zip(before) {
            if let Some(after) = state.queue.known(index)
                && before.is_none_or(|before| !before.is_same(after))
            {
                image.learn_unless_older(after.clone());
            }
        }
        state.leader_due_at = Some(Instant::now() + LATE_MAX);
        true
    }

    /// Drops a call that no caller waits for; its answer counts as lost.
    pub(super) fn drop_unawaited_call(state: &mut LaneState) {
        if Self::has_unawaited_call(state) {
            state.parked_call = None;
            state.queue.answered(Answer::Lost, state.last_event_at);
        }
    }

    /// Awaits a call that no caller waits for, in the background: its answer tells if the tokens of
    /// callers that left were taken. Outside a runtime the answer counts as lost.
    pub(super) fn await_call_in_background(self: &Arc<Self>, state: &mut LaneState) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Self::drop_unawaited_call(state);
        };
        if Self::has_unawaited_call(state) {
            let lane = Arc::clone(self);
            runtime.spawn(async move {
                if let Some(leader) = lane.lead() {
                    leader.await_call().await;
                }
            });
        }
    }

    fn has_unawaited_call(state: &LaneState) -> bool {
        state.leader_due_at.is_none() && state.queue.has_no_caller() && state.parked_call.is_some()
    }
}
