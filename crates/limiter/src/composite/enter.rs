//! A caller that enters its request into a lane, waits, leads, and leaves.

use std::sync::Arc;

use sluicegate_core::{Outcome, QueuedRequest, StateOnLeave};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::lane::{Lane, LaneWaiter};
use super::lead::Timer;
use super::table_call::{LaneTable, Resolved};
use super::undecided_error::{error_at_deadline, unavailable_if_in_doubt};
use crate::call::{CallContext, Effect};
use crate::cost::Cost;
use crate::error::AcquireError;

impl Lane {
    /// Enters a request into the lane and waits for its outcome, until the deadline at most. Adds
    /// the cost to that of the caller's call.
    ///
    /// `request` builds the request. If the caller leaves without an outcome, `request` is called
    /// again and must build the same request: the queue finds it by its id, and may give back its
    /// amounts. If the request takes effect although its caller has left, the tokens of an acquire
    /// are given back; a correction or a lease stands.
    pub(super) async fn submit(
        self: &Arc<Self>,
        table: &dyn LaneTable,
        request: &(dyn Fn() -> QueuedRequest + Sync),
        context: &mut CallContext<'_>,
    ) -> Result<Resolved, (AcquireError, Effect)> {
        let (ends_at, clock) = (context.ends_at, context.clock);
        let (sender, receiver) = oneshot::channel();
        let mut entered = LeaveOnDrop { lane: self, request, receiver, must_leave: true };
        let replies_before = {
            let mut state = self.lock();
            self.adopt_images(&mut state);
            let waiter = LaneWaiter { sender, cost: Cost::default() };
            state.queue.enter(request(), waiter, clock.now());
            let replies = state.replies;
            self.deliver_outcomes(&mut state, table);
            replies
        };
        let mut sleep = std::pin::pin!(tokio::time::sleep_until(ends_at));
        let mut timer = Timer::new(sleep.as_mut(), ends_at);
        let resolved = loop {
            match entered.receiver.try_recv() {
                Ok(resolved) => break Some(resolved),
                Err(TryRecvError::Empty) => {}
                // The same request has entered again. Its new caller gets the outcome.
                Err(TryRecvError::Closed) => {
                    entered.must_leave = false;
                    // This is no outage: the table may be all right.
                    let contended = AcquireError::Contended { attempts: context.cost.attempts };
                    return Err((unavailable_if_in_doubt(true, contended), Effect::InDoubt));
                }
            }
            match self.lead() {
                Some(leading) => {
                    let receiver = &mut entered.receiver;
                    if !leading.lead_until_resolved(receiver, &mut timer, table, clock).await {
                        break None;
                    }
                }
                None => {
                    let due_at = self.lock().leader_due_at.unwrap_or(ends_at);
                    tokio::select! {
                        biased;
                        resolved = &mut entered.receiver => if let Ok(resolved) = resolved {
                            break Some(resolved);
                        },
                        // The leader has stopped. This caller looks for its outcome again, and
                        // leads if no other caller does.
                        () = self.leader_stopped.notified() => {}
                        () = timer.until(due_at) => {
                            if timer.is_over_or_extend() {
                                break None;
                            }
                            self.extend_time_of_starved_leader(due_at);
                        }
                    }
                }
            }
        };
        let has_call_in_flight = resolved.is_none() && self.lock().queue.has_call_in_flight();
        let resolved = resolved.map_or_else(|| entered.leave(), Ok);
        entered.must_leave = false;
        let (Ok(Resolved { cost, .. }) | Err((_, cost))) = &resolved;
        context.cost += *cost;
        let is_in_doubt = match resolved {
            Ok(resolved) => return Ok(resolved),
            Err((is_in_doubt, _)) => is_in_doubt,
        };
        let state = self.lock();
        // In a pause no call is in flight, so the table is not silent.
        let is_silent = has_call_in_flight && state.replies == replies_before;
        let table_error = state.table_error.as_deref();
        let error = error_at_deadline(is_in_doubt, is_silent, table_error, context);
        Err((error, Effect::of(is_in_doubt)))
    }
}

/// A request that waits. It leaves the queue when this is dropped.
struct LeaveOnDrop<'a> {
    lane: &'a Arc<Lane>,
    request: &'a (dyn Fn() -> QueuedRequest + Sync),
    receiver: oneshot::Receiver<Resolved>,
    must_leave: bool,
}

impl LeaveOnDrop<'_> {
    /// Gives the request up: its time is over.
    ///
    /// # Errors
    /// Without an outcome: whether the request may have taken effect, or still may; and its cost.
    fn leave(&mut self) -> Result<Resolved, (bool, Cost)> {
        self.must_leave = false;
        let mut state = self.lane.lock();
        match self.receiver.try_recv() {
            Ok(resolved) => return Ok(resolved),
            // The same request has entered again: its place is the new caller's.
            Err(TryRecvError::Closed) => return Err((true, Cost::default())),
            Err(TryRecvError::Empty) => {}
        }
        let (on_leave, waiter) = state.queue.leave(&(self.request)().id);
        Lane::drop_unawaited_call(&mut state);
        let cost = waiter.map(|waiter| waiter.cost).unwrap_or_default();
        let outcome = match on_leave {
            StateOnLeave::Done(done) => Outcome::Done(done),
            StateOnLeave::Refused(limits) => Outcome::Refused(limits),
            on_leave => return Err((on_leave == StateOnLeave::InDoubt, cost)),
        };
        Ok(Resolved { outcome, cost, table_error: None })
    }
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        if !self.must_leave {
            return;
        }
        let request = (self.request)();
        let mut state = self.lane.lock();
        let done = match self.receiver.try_recv() {
            // The outcome was sent already.
            Ok(Resolved { outcome: Outcome::Done(done), .. }) => Some(done),
            Ok(_) | Err(TryRecvError::Closed) => None,
            Err(TryRecvError::Empty) => match state.queue.leave(&request.id) {
                (StateOnLeave::Done(done), _) => Some(done),
                _ => None,
            },
        };
        if let Some(done) = done {
            state.queue.done_unseen(request, done);
        }
        self.lane.await_call_in_background(&mut state);
    }
}
