//! A caller that enters its request into a lane, waits, leads, and leaves.

use sluicegate_core::{OnLeave, QueuedRequest, RequestId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lane::{Lane, LaneWaiter};
use super::lead::Timer;
use super::table_call::{CallCost, Calls, Expired, Settled};
use crate::clock::Clock;

impl Lane {
    /// Settles a request, together with others on the lane, or gives it up at its deadline.
    pub(super) async fn settle(
        &self,
        calls: &dyn Calls,
        request: QueuedRequest,
        deadline: Instant,
        clock: &dyn Clock,
    ) -> Result<Settled, Expired> {
        let (sender, mut receiver) = oneshot::channel();
        let mut member = Member { lane: self, id: request.id.clone(), is_open: true };
        let entered_at = Instant::now();
        {
            let mut state = self.lock();
            self.look(&mut state);
            let waiter = LaneWaiter { sender, cost: CallCost::default() };
            state.queue.enter(request, waiter, clock.now());
            self.dispatch(&mut state, calls);
        }
        let mut sleep = std::pin::pin!(tokio::time::sleep_until(deadline));
        let mut timer = Timer { sleep: sleep.as_mut(), deadline };
        let settled = loop {
            if let Ok(settled) = receiver.try_recv() {
                break Some(settled);
            }
            match self.lead() {
                Some(leading) => {
                    if !leading.until(&mut receiver, &mut timer, calls, clock).await {
                        break None;
                    }
                }
                None => {
                    let late = self.lock().led_until.unwrap_or(deadline);
                    tokio::select! {
                        biased;
                        settled = &mut receiver => break settled.ok(),
                        // It leads or passes the lead on, whatever the outcome of its own request.
                        () = self.free.notified() => {}
                        () = timer.at(late) => if timer.is_over() {
                            break None;
                        }
                    }
                }
            }
        };
        if let Some(settled) = settled {
            member.is_open = false;
            return Ok(settled);
        }
        let (on_leave, cost) = member.leave();
        // It may have been settled at this very moment.
        if let Ok(settled) = receiver.try_recv() {
            return Ok(settled);
        }
        let state = self.lock();
        let is_silent = state.replied_at <= entered_at;
        Err(Expired { on_leave, cost, table_error: state.table_error.clone(), is_silent })
    }
}

/// A request that waits.
struct Member<'a> {
    lane: &'a Lane,
    id: RequestId,
    is_open: bool,
}

impl Member<'_> {
    fn leave(&mut self) -> (OnLeave, CallCost) {
        self.is_open = false;
        let mut state = self.lane.lock();
        let (on_leave, waiter) = state.queue.leave(&self.id);
        Lane::tidy(&mut state);
        (on_leave, waiter.map(|waiter| waiter.cost).unwrap_or_default())
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.leave();
        }
    }
}
