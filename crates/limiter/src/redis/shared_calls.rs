//! The requests of a process that wait to share a call.
//!
//! While a call for requests of one shape is in flight, other requests of that shape wait. The next
//! call takes the sum of their amounts: they share it.
//!
//! This file holds the state; the task in `call_driver.rs` makes the calls.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use sluicegate_core::{Amounts, LimitName};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::range::MILLI_MAX;
use super::script_bucket::ScriptBucket;
use crate::call::STARVED_MIN;
use crate::error::AcquireError;
use crate::lock::lock;
use crate::store::Grant;

/// The common part of requests that can share a call: the buckets, the rules, and the names of the
/// requested limits. Only the amounts differ.
#[derive(PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) targets: Vec<ScriptBucket>,
    limits: Vec<LimitName>,
}

impl Shape {
    pub(super) fn new(targets: Vec<ScriptBucket>, amounts: &Amounts) -> Arc<Self> {
        Arc::new(Self { targets, limits: amounts.keys().cloned().collect() })
    }
}

/// Shapes on the same buckets rarely differ.
impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.targets.iter().for_each(|target| target.bucket.hash(state));
    }
}

/// The requests that wait, by their shape. A shape has an entry while a task drives its calls.
#[derive(Default)]
pub(super) struct SharedCalls {
    waiting: Mutex<HashMap<Arc<Shape>, VecDeque<CallWaiter>>>,
    tickets: AtomicU64,
}

pub(super) type CallResult = Result<Grant, AcquireError>;

/// A request that waits, or that is a member of a call in flight.
pub(super) struct CallWaiter {
    pub(super) ticket: u64,
    pub(super) amounts: Amounts,
    pub(super) ends_at: Instant,
    /// The attempts of its call so far, if the server answered the last one that it cannot make the
    /// call now; otherwise 0.
    pub(super) attempts_while_busy: Arc<AtomicU32>,
    pub(super) sender: oneshot::Sender<CallResult>,
}

impl CallWaiter {
    /// False if its time ended at most [`STARVED_MIN`] ago: its caller has left, or is about
    /// to. After a longer delay the process had no processor time, and the caller waits some more
    /// ([`in_time`](crate::call::in_time)).
    pub(super) fn may_be_sent(&self) -> bool {
        let late = Instant::now().checked_duration_since(self.ends_at);
        late.is_none_or(|late| late > STARVED_MIN)
    }

    /// Tells the caller its result. Returns the amounts that were granted to a caller that has
    /// left.
    pub(super) fn answer(self, result: CallResult) -> Amounts {
        match self.sender.send(result) {
            Err(Ok(_)) => self.amounts,
            _ => Amounts::new(),
        }
    }
}

impl SharedCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<Shape>, VecDeque<CallWaiter>>> {
        lock(&self.waiting)
    }

    /// A number that no other request has.
    pub(super) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets a request wait for a call of its shape. True if no task drives the shape: then the
    /// caller must start one.
    pub(super) fn enter(&self, shape: &Arc<Shape>, waiter: CallWaiter) -> bool {
        match self.lock().entry(shape.clone()) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().push_back(waiter);
                false
            }
            Entry::Vacant(entry) => {
                entry.insert(VecDeque::from([waiter]));
                true
            }
        }
    }

    /// Takes this request out, if it still waits.
    pub(super) fn leave(&self, shape: &Shape, ticket: u64) -> Option<CallWaiter> {
        let mut waiting = self.lock();
        let waiters = waiting.get_mut(shape)?;
        let at = waiters.iter().position(|waiter| waiter.ticket == ticket)?;
        waiters.remove(at)
    }

    /// Takes waiting requests, in order, while their sum stays within `MILLI_MAX`. If none waits,
    /// no task drives the shape any more.
    pub(super) fn gather(&self, shape: &Shape) -> Option<Vec<CallWaiter>> {
        let mut waiting = self.lock();
        let waiters = waiting.get_mut(shape)?;
        waiters.retain(|waiter| !waiter.sender.is_closed());
        let mut sum = Amounts::new();
        let is_counted = |waiter: &&CallWaiter| {
            sum += &waiter.amounts;
            sum.values().all(|amount| amount.get() <= MILLI_MAX)
        };
        let count = waiters.iter().take_while(is_counted).count();
        if waiters.is_empty() {
            waiting.remove(shape);
            return None;
        }
        Some(waiters.drain(..count).collect())
    }

    /// Lets these wait again, before all others.
    pub(super) fn put_back(&self, shape: &Shape, first: Vec<CallWaiter>) {
        if let Some(waiters) = self.lock().get_mut(shape) {
            first.into_iter().rev().for_each(|waiter| waiters.push_front(waiter));
        }
    }

    /// Ends the waiting of all requests of a shape: their callers get no result.
    pub(super) fn stop(&self, shape: &Shape) {
        self.lock().remove(shape);
    }
}

impl std::fmt::Debug for SharedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedCalls").finish_non_exhaustive()
    }
}
