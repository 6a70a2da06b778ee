//! Requests that wait for a write of their bucket, and may be served by another request's write.
//!
//! A store may take longer to answer than tokens last. If each request waited for its own write,
//! each write would then serve one request.

use tokio::sync::oneshot;

use super::atomic_bucket::{AtomicBucket, Demand, TakeResult};
use crate::cost::Cost;
use crate::error::AcquireError;

/// The most requests that wait for one bucket; each takes a kilobyte.
pub(super) const WAITERS_MAX: usize = 131_072;

pub(super) type WaiterResult = Result<Cost, AcquireError>;

/// The waiting requests, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Waiters(Vec<LeaseWaiter>);

#[derive(Debug)]
struct LeaseWaiter {
    demands: Vec<Demand>,
    wait_time: WaitTime,
    answer: oneshot::Sender<WaiterResult>,
}

/// The time that a request may wait, in epoch milliseconds. By the wall clock, because it goes on
/// while the process is frozen.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitTime {
    pub(super) came_ms: i64,
    pub(super) until_ms: i64,
    /// The number of times that the clock had been set back when the request came.
    pub(super) set_backs: u32,
}

impl Waiters {
    /// Enters a request. Returns the channel that another request's write answers; `None`: too many
    /// wait.
    pub(super) fn enter(
        &mut self,
        demands: &[Demand],
        wait_time: WaitTime,
    ) -> Option<oneshot::Receiver<WaiterResult>> {
        if self.0.len() == self.0.capacity() || self.0.len() >= WAITERS_MAX {
            // Many may have stopped waiting while the store did not answer.
            self.0.retain(|waiter| !waiter.answer.is_closed());
            self.0.reserve(self.0.len().max(4));
        }
        if self.0.len() >= WAITERS_MAX {
            return None;
        }
        let (answer, receiver) = oneshot::channel();
        self.0.push(LeaseWaiter { demands: demands.to_vec(), wait_time, answer });
        Some(receiver)
    }

    /// The sum that the waiting requests demand of the limit in a slot, in millitokens.
    pub(super) fn demand_of(&self, slot: usize) -> u64 {
        let waiters = self.0.iter().filter(|waiter| !waiter.answer.is_closed());
        let demands = waiters.flat_map(|waiter| &waiter.demands);
        let milli =
            demands.filter(|demand| usize::from(demand.slot) == slot).map(|demand| demand.milli);
        milli.fold(0, u64::saturating_add)
    }

    /// Serves the waiting requests in order. A request gets tokens that were young enough when it
    /// arrived. The bucket must be watched.
    pub(super) fn serve(&mut self, atomic: &AtomicBucket, now: WaitTime) {
        for waiter in std::mem::take(&mut self.0) {
            if waiter.answer.is_closed() {
                continue;
            }
            let WaitTime { came_ms, until_ms, set_backs } = waiter.wait_time;
            let still_waits = now.came_ms <= until_ms && now.set_backs == set_backs;
            if !still_waits || atomic.take(&waiter.demands, came_ms) == TakeResult::NotTaken {
                self.0.push(waiter);
            } else if waiter.answer.send(Ok(Cost::default())).is_err() {
                // Tokens that no longer fit stay consumed.
                waiter.demands.iter().for_each(|demand| _ = atomic.put(demand.slot, demand.milli));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leasing::atomic_bucket::PutResult;

    const ASKS: [Demand; 1] = [Demand { slot: 0, milli: 4 }];

    fn came(came_ms: i64) -> WaitTime {
        WaitTime { came_ms, until_ms: 5_000, set_backs: 0 }
    }

    /// A bucket whose tokens end at 1,000.
    fn atomic(milli: u64) -> AtomicBucket {
        let atomic = AtomicBucket::new(1);
        assert_ne!(atomic.put(0, milli), PutResult::NoRoom);
        atomic.set_times(1_000, 0);
        atomic
    }

    #[test]
    fn waiters_are_served_tokens_that_were_fresh_when_they_came() {
        let (mut waiters, atomic) = (Waiters::default(), atomic(10));
        drop(waiters.enter(&ASKS, came(500)).unwrap());
        let answers =
            [1_001, 500, 1_000, 1_000].map(|came_ms| waiters.enter(&ASKS, came(came_ms)).unwrap());
        assert_eq!(waiters.demand_of(0), 16);
        waiters.serve(&atomic, came(4_000));
        let is_served = answers.map(|mut answer| answer.try_recv().is_ok());
        assert_eq!(is_served, [false, true, true, false]);
        assert_eq!((atomic.slots[0].pool.tokens(), waiters.0.len()), (2, 2));
    }

    #[test]
    fn nobody_is_served_after_their_time_or_by_another_clock() {
        let (mut waiters, atomic) = (Waiters::default(), atomic(10));
        let mut answer = waiters.enter(&ASKS, came(500)).unwrap();
        for now in [came(5_001), WaitTime { set_backs: 1, ..came(600) }] {
            waiters.serve(&atomic, now);
            assert!(answer.try_recv().is_err(), "{now:?}");
        }
        waiters.serve(&atomic, came(5_000));
        assert!(answer.try_recv().unwrap().is_ok());
    }

    #[test]
    fn those_who_gave_up_take_no_room() {
        let mut waiters = Waiters::default();
        let answers: Vec<_> = (0..10).map(|_| waiters.enter(&ASKS, came(0)).unwrap()).collect();
        for _ in 0..1_000 {
            drop(waiters.enter(&ASKS, came(0)).unwrap());
        }
        assert!(waiters.0.len() <= 2 * (answers.len() + 4), "{}", waiters.0.len());
        assert_eq!(waiters.demand_of(0), 40);
    }

    #[test]
    fn no_more_wait_than_there_is_room_for() {
        let mut waiters = Waiters::default();
        let mut answers: Vec<_> =
            (0..WAITERS_MAX).map(|_| waiters.enter(&ASKS, came(0)).unwrap()).collect();
        assert!(waiters.enter(&ASKS, came(0)).is_none());
        answers.pop();
        assert!(waiters.enter(&ASKS, came(0)).is_some());
    }
}
