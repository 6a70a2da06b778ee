//! The lanes of a process. A lane holds the requests of one shape that wait while a call for others
//! of that shape is in flight. They are sent as one call for the sum of their amounts.
//!
//! This file holds the state; `lead.rs` makes the calls. One caller leads a lane: it sends a call
//! and awaits the answer. If a caller leaves a lane or stops leading it, the first that still waits
//! always replaces it.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};

use sluicegate_core::{Amounts, LimitName, RequestId};
use tokio::sync::oneshot;

use super::range::MILLI_MAX;
use super::script_bucket::ScriptBucket;
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

/// A lane exists while a caller leads it.
#[derive(Default)]
pub(super) struct Lanes(Mutex<LanesState>);

#[derive(Default)]
struct LanesState {
    lanes: HashMap<Arc<Shape>, VecDeque<BatchWaiter>>,
    tickets: u64,
}

/// A request that waits, or that is part of a call in flight.
pub(super) struct BatchWaiter {
    ticket: u64,
    pub(super) amounts: Amounts,
    pub(super) sender: oneshot::Sender<BatchTurn>,
}

/// The place of a request in its lane.
pub(super) struct BatchPlace {
    ticket: u64,
    pub(super) receiver: oneshot::Receiver<BatchTurn>,
}

/// The end of a request's wait.
pub(super) enum BatchTurn {
    /// A leader had it decided.
    Done(Result<Grant, AcquireError>),
    /// It now leads the lane, with the requests that wait, or with a call that its last leader left
    /// in doubt.
    Lead(Batch),
}

/// The requests of one call, except the leader's.
#[derive(Default)]
pub(super) struct Batch {
    /// `None`: it was not sent yet.
    pub(super) id: Option<RequestId>,
    /// In order of arrival.
    pub(super) members: Vec<BatchWaiter>,
    /// The shares of callers that have left.
    pub(super) gone: Amounts,
    /// True if an earlier leader sent it and did not learn the answer. It must be sent again under
    /// its id and for the same sum.
    pub(super) is_in_doubt: bool,
}

impl Batch {
    /// The amounts of the call, for a leader that asks for `own`.
    pub(super) fn sum<'a>(&self, own: &'a Amounts) -> Cow<'a, Amounts> {
        let mut sum = Cow::Borrowed(own);
        for amounts in self.members.iter().map(|member| &member.amounts).chain([&self.gone]) {
            if !amounts.is_empty() {
                *sum.to_mut() += amounts;
            }
        }
        sum
    }
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, LanesState> {
        lock(&self.0)
    }

    /// Takes a place in the lane of this shape; `None`: the request leads, as there was no leader.
    pub(super) fn enter(&self, shape: &Arc<Shape>, amounts: &Amounts) -> Option<BatchPlace> {
        let LanesState { lanes, tickets } = &mut *self.lock();
        let queue = match lanes.entry(shape.clone()) {
            Entry::Occupied(lane) => lane.into_mut(),
            Entry::Vacant(lane) => {
                lane.insert(VecDeque::new());
                return None;
            }
        };
        *tickets += 1;
        let (sender, receiver) = oneshot::channel();
        queue.push_back(BatchWaiter { ticket: *tickets, amounts: amounts.clone(), sender });
        Some(BatchPlace { ticket: *tickets, receiver })
    }

    /// Gives up a place; false if the request is already part of a call, or was told its turn.
    pub(super) fn leave(&self, shape: &Shape, place: &BatchPlace) -> bool {
        let mut state = self.lock();
        let Some(queue) = state.lanes.get_mut(shape) else { return false };
        let at = queue.iter().position(|waiter| waiter.ticket == place.ticket);
        at.and_then(|at| queue.remove(at)).is_some()
    }

    /// Takes all waiting requests, as long as a script can count the sum with the leader's own
    /// amounts.
    pub(super) fn gather(&self, shape: &Shape, own: &Amounts) -> Batch {
        let mut state = self.lock();
        let Some(queue) = state.lanes.get_mut(shape) else { return Batch::default() };
        queue.retain(|waiter| !waiter.sender.is_closed());
        let mut sum = own.clone();
        let is_counted = |waiter: &&BatchWaiter| {
            sum += &waiter.amounts;
            sum.values().all(|amount| amount.get() <= MILLI_MAX)
        };
        let count = queue.iter().take_while(is_counted).count();
        Batch { members: queue.drain(..count).collect(), ..Batch::default() }
    }

    /// Puts these back into the lane, before all others.
    pub(super) fn put_back(&self, shape: &Shape, waiters: Vec<BatchWaiter>) {
        if let Some(queue) = self.lock().lanes.get_mut(shape) {
            to_front(queue, waiters);
        }
    }

    /// Passes the lead on: to a member of a batch that is in doubt, or to the first that waits. The
    /// members of any other batch wait again, before all others. If no caller waits, the lane ends.
    ///
    /// Returns a batch in doubt that no caller waits for.
    pub(super) fn pass(&self, shape: &Arc<Shape>, mut batch: Batch) -> Option<Batch> {
        let mut state = self.lock();
        let Entry::Occupied(mut lane) = state.lanes.entry(shape.clone()) else { return None };
        let queue = lane.get_mut();
        if batch.is_in_doubt {
            batch = hand_over(batch)?;
        } else {
            to_front(queue, std::mem::take(&mut batch.members));
        }
        let is_led = std::iter::from_fn(|| queue.pop_front())
            .any(|waiter| waiter.sender.send(BatchTurn::Lead(Batch::default())).is_ok());
        if !is_led {
            lane.remove();
        }
        batch.is_in_doubt.then_some(batch)
    }
}

fn to_front(queue: &mut VecDeque<BatchWaiter>, waiters: Vec<BatchWaiter>) {
    waiters.into_iter().rev().for_each(|waiter| queue.push_front(waiter));
}

/// Lets the first member that still waits lead the batch; returns a batch whose callers have all
/// left.
fn hand_over(mut batch: Batch) -> Option<Batch> {
    while !batch.members.is_empty() {
        let BatchWaiter { amounts, sender, .. } = batch.members.remove(0);
        match sender.send(BatchTurn::Lead(batch)) {
            Err(BatchTurn::Lead(back)) => batch = back,
            _ => return None,
        }
        batch.gone += &amounts;
    }
    Some(batch)
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lanes").finish_non_exhaustive()
    }
}
