//! The lanes of a process: a lane has the requests of one shape that wait while a call for others of
//! that shape is in flight. They go together, as one call for the sum of their amounts.
//!
//! This is the state alone; `lead.rs` makes the calls. One caller leads a lane: it sends a call and
//! awaits the answer. A caller that leaves a lane or stops leading it is always replaced by the first
//! that still waits.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluicegate_core::{Amounts, LimitName, RequestId};
use tokio::sync::oneshot;

use super::range::MILLI_MAX;
use super::sides::ScriptBucket;
use crate::error::AcquireError;
use crate::store::Grant;

/// The common part of requests that can share a call: the buckets, the rules, and the names of the
/// limits that are asked for. Only the amounts differ.
#[derive(PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) sides: Vec<ScriptBucket>,
    limits: Vec<LimitName>,
}

impl Shape {
    pub(super) fn new(sides: Vec<ScriptBucket>, amounts: &Amounts) -> Arc<Self> {
        Arc::new(Self { sides, limits: amounts.keys().cloned().collect() })
    }
}

/// Shapes on the same buckets seldom differ.
impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sides.iter().for_each(|side| side.bucket.hash(state));
    }
}

/// A lane is there while somebody leads it.
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
    /// It leads the lane now: those who wait, or a call that its last leader left in doubt.
    Lead(Batch),
}

/// The requests of one call, besides the leader's.
#[derive(Default)]
pub(super) struct Batch {
    /// `None`: it was not sent yet.
    pub(super) id: Option<RequestId>,
    /// In order of arrival.
    pub(super) members: Vec<BatchWaiter>,
    /// The shares of callers that are gone.
    pub(super) gone: Amounts,
    /// An earlier leader sent it and did not learn the answer. It must be sent again under its id and
    /// for the same sum.
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place in the lane of this shape; `None`: the request leads, as nobody does.
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

    /// Gives up a place; false when the request is part of a call already, or was told its turn.
    pub(super) fn leave(&self, shape: &Shape, place: &BatchPlace) -> bool {
        let mut state = self.lock();
        let Some(queue) = state.lanes.get_mut(shape) else { return false };
        let at = queue.iter().position(|waiter| waiter.ticket == place.ticket);
        at.and_then(|at| queue.remove(at)).is_some()
    }

    /// All that wait, as far as a script counts the sum with the leader's own amounts.
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

    /// Has these wait again, before all others.
    pub(super) fn put_back(&self, shape: &Shape, waiters: Vec<BatchWaiter>) {
        if let Some(queue) = self.lock().lanes.get_mut(shape) {
            to_front(queue, waiters);
        }
    }

    /// Passes the lead on: to a member of a batch that is in doubt, or to the first that waits. Those
    /// of any other batch wait again, before all others. Without anybody who waits the lane ends.
    ///
    /// Returns a batch in doubt that nobody waits for.
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

/// Has the first member that still waits lead the batch; returns a batch of callers that are all gone.
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
