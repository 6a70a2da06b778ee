//! The leader of a lane: the caller that carries out the actions of the queue for all that wait.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{Action, Answer};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use super::lane::{ANSWER_TIME_MAX, LATE_MAX, Lane};
use super::table_call::{LaneTable, PendingCall, Resolved, TableCall, TableReply};
use crate::call::{STARVED_MIN, UNREAD_TIME, new_id};
use crate::clock::Clock;
use crate::table::TableError;

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The longest pause after other writers outran corrections, if no caller waits for tokens.
const CORRECTION_PAUSE_MAX: Duration = Duration::from_millis(500);

impl Lane {
    /// Gives the leader more time if this caller's own timer was late, too: then the process had no
    /// processor time, and an answer to the leader may have arrived unread.
    pub(super) fn extend_time_of_starved_leader(&self, due_at: Instant) {
        let mut state = self.lock();
        if due_at.elapsed() > STARVED_MIN && state.leader_due_at == Some(due_at) {
            state.leader_due_at = Some(Instant::now() + UNREAD_TIME);
        }
    }

    /// Becomes the leader, if there is no active one.
    pub(super) fn lead(self: &Arc<Self>) -> Option<Leader<'_>> {
        let (mut state, now) = (self.lock(), Instant::now());
        if let Some(until) = state.leader_due_at {
            if now < until {
                return None;
            }
            // The old leader has the call and may never poll it, so the answer counts as lost.
            if state.queue.has_call_in_flight() {
                let last_event_at = state.last_event_at;
                state.queue.answered(Answer::Lost, last_event_at);
            }
        }
        state.term += 1;
        let (pending_call, sent_at) = state.parked_call.take().unzip();
        let sent_at = sent_at.unwrap_or(now);
        state.leader_due_at = Some(now.max(sent_at + state.answer_time) + LATE_MAX);
        Some(Leader { lane: self, term: state.term, pending_call, sent_at })
    }
}

/// The one timer of a caller: registering another may cost a system call.
pub(super) struct Timer<'a> {
    sleep: Pin<&'a mut Sleep>,
    starts_at: Instant,
    ends_at: Instant,
    was_starved: bool,
}

impl<'a> Timer<'a> {
    pub(super) fn new(sleep: Pin<&'a mut Sleep>, ends_at: Instant) -> Self {
        Self { sleep, starts_at: Instant::now(), ends_at, was_starved: false }
    }

    /// Waits until an instant, or until the caller's deadline if that is earlier.
    pub(super) async fn until(&mut self, instant: Instant) {
        let instant = instant.min(self.ends_at);
        if self.sleep.deadline() != instant {
            self.sleep.as_mut().reset(instant);
        }
        self.sleep.as_mut().await;
    }

    /// True if less than `time` is left, and the caller came more than `time` ago. So a caller
    /// that comes with little time gets its attempt.
    fn is_too_late_for(&self, time: Duration) -> bool {
        let now = Instant::now();
        self.ends_at < now + time && self.starts_at + time < now
    }

    /// True if the caller's time is over. If the process had no processor time at the deadline, an
    /// answer may have arrived unread. The caller then gets more time, once.
    pub(super) fn is_over_or_extend(&mut self) -> bool {
        if !self.was_starved && self.ends_at.elapsed() > STARVED_MIN {
            (self.was_starved, self.ends_at) = (true, Instant::now() + UNREAD_TIME);
        }
        Instant::now() >= self.ends_at
    }
}

/// The caller that carries out the actions of the queue.
pub(super) struct Leader<'a> {
    lane: &'a Arc<Lane>,
    term: u64,
    pending_call: Option<PendingCall>,
    /// The time at which the call was sent, perhaps by an earlier leader.
    sent_at: Instant,
}

impl Leader<'_> {
    /// Leads until the caller's own request is resolved, until the queue is idle, or until another
    /// caller leads. Returns false if the caller's time is up, or too short for another attempt:
    /// then its request must leave the queue.
    pub(super) async fn lead_until_resolved(
        mut self,
        receiver: &mut oneshot::Receiver<Resolved>,
        timer: &mut Timer<'_>,
        table: &dyn LaneTable,
        clock: &dyn Clock,
    ) -> bool {
        let mut must_yield = self.lane.lock().had_several_waiters;
        while receiver.is_empty() {
            if self.pending_call.is_some() {
                let mut answer_due_at = self.sent_at + self.lane.lock().answer_time;
                let mut was_starved = false;
                let reply = loop {
                    tokio::select! {
                        biased;
                        reply = self.reply() => break reply,
                        () = timer.until(answer_due_at) => {}
                    }
                    if timer.is_over_or_extend() {
                        return false;
                    }
                    if Instant::now() < answer_due_at {
                        continue;
                    }
                    // This process had no processor time, so the answer may have arrived unread. If
                    // it were dropped and the write sent again, other writes might by then have
                    // pushed its id out of the bucket, and nothing could tell any more if it
                    // happened.
                    if !was_starved && answer_due_at.elapsed() > STARVED_MIN {
                        (was_starved, answer_due_at) = (true, Instant::now() + UNREAD_TIME);
                        let mut state = self.lane.lock();
                        if state.term != self.term {
                            return true;
                        }
                        state.leader_due_at = Some(answer_due_at + LATE_MAX);
                        continue;
                    }
                    self.pending_call = None;
                    break silence();
                };
                let mut state = self.lane.lock();
                let reply = (reply, self.sent_at.elapsed());
                if !self.lane.apply_reply(&mut state, self.term, reply, Some(clock)) {
                    return true;
                }
                self.lane.deliver_outcomes(&mut state, table);
                must_yield = state.had_several_waiters;
                continue;
            }
            // Callers whose requests were just resolved may now enter new requests, which then
            // share the next write.
            if std::mem::take(&mut must_yield) {
                tokio::task::yield_now().await;
            }
            let pause = {
                let mut state = self.lane.lock();
                let state = &mut *state;
                if state.term != self.term {
                    return true;
                }
                // There was no connection just now. A write that tries again, and is in flight at
                // the deadline, would leave its requests in doubt.
                if state.connect_failed_in.is_some_and(|took| timer.is_too_late_for(2 * took)) {
                    return false;
                }
                self.lane.adopt_images(state);
                state.last_event_at = clock.now();
                let action = state.queue.next(state.last_event_at, &mut new_id);
                self.lane.deliver_outcomes(state, table);
                let due_at = Instant::now() + state.answer_time + LATE_MAX;
                state.leader_due_at = Some(due_at);
                match action {
                    Action::Idle => return true,
                    Action::Pause { pauses_in_a_row, corrections_were_outrun } => {
                        Some(pause(pauses_in_a_row, corrections_were_outrun, state.quickest))
                    }
                    Action::Read(buckets) => {
                        let keys = buckets.iter().map(|index| self.lane.buckets[*index].clone());
                        self.pending_call = Some(table.call(TableCall::Read(keys.collect())));
                        state.last_call_counts = false;
                        None
                    }
                    Action::Write(write) => {
                        // A transaction that is sent again is the same write, and counts once.
                        let last = state.counted_write.replace(write.clone());
                        state.last_call_counts =
                            last.is_none_or(|last| !Arc::ptr_eq(&last, &write));
                        for waiter in state.queue.callers_of_call() {
                            waiter.cost.attempts += u32::from(state.last_call_counts);
                        }
                        let (buckets, mark) = (self.lane.buckets.clone(), self.lane.mark.clone());
                        let asked = TableCall::Write(buckets, write, mark);
                        self.pending_call = Some(table.call(asked));
                        None
                    }
                }
            };
            match pause {
                Some(pause) => {
                    timer.until(Instant::now() + pause).await;
                    if timer.is_over_or_extend() {
                        return false;
                    }
                }
                None => self.sent_at = Instant::now(),
            }
        }
        true
    }

    /// Awaits a call that no caller waits for. Takes in its answer, unless another caller leads
    /// meanwhile.
    pub(super) async fn await_call(mut self) {
        if self.pending_call.is_none() {
            return;
        }
        let reply = tokio::time::timeout(ANSWER_TIME_MAX, self.reply()).await;
        self.pending_call = None;
        let reply = (reply.unwrap_or_else(|_| silence()), self.sent_at.elapsed());
        let mut state = self.lane.lock();
        self.lane.apply_reply(&mut state, self.term, reply, None);
        // Another caller may have entered meanwhile.
        Lane::send_resolved(&mut state);
        drop(state);
    }

    /// Waits for the answer. If this future is dropped before that, the call stays pending.
    async fn reply(&mut self) -> TableReply {
        let Some(call) = &mut self.pending_call else { return std::future::pending().await };
        let reply = call.await;
        self.pending_call = None;
        reply
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut state = self.lane.lock();
        if state.term != self.term {
            return;
        }
        state.leader_due_at = None;
        state.parked_call =
            self.pending_call.take().map(|pending_call| (pending_call, self.sent_at));
        let has_no_caller = state.queue.has_no_caller();
        Lane::drop_unawaited_call(&mut state);
        drop(state);
        if !has_no_caller {
            self.lane.leader_stopped.notify_one();
        }
    }
}

fn silence() -> TableReply {
    TableReply::of_error(TableError::Unconfirmed("the table did not answer in time".into()))
}

/// A random pause. Its upper bound doubles with each pause in a row, up to a maximum;
/// `pauses_in_a_row` counts this pause, too. If other writers outran corrections and no caller
/// waits for tokens, the bound is a multiple of the quickest round trip.
fn pause(pauses_in_a_row: u32, corrections_were_outrun: bool, quickest: Duration) -> Duration {
    let in_a_row = pauses_in_a_row.min(12);
    let longest = match corrections_were_outrun {
        true => quickest
            .max(Duration::from_millis(1))
            .saturating_mul(2 << in_a_row)
            .min(CORRECTION_PAUSE_MAX),
        false => Duration::from_millis(1 << (in_a_row - 1)).min(PAUSE_MAX),
    };
    longest.mul_f64(fastrand::f64())
}
