//! The requests of a process that wait to share a call.
//!
//! While a call for requests of one shape is in flight, other requests of that shape wait. The next
//! call takes the sum of their amounts: they share it.
//!
//! This file holds the state; `lead.rs` makes the calls. One caller leads a shape: it sends a call
//! and awaits the answer. If the leader leaves, the first caller that still waits replaces it.

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

/// The requests that wait, by their shape. A shape has an entry while a caller leads it.
#[derive(Default)]
pub(super) struct SharedCalls(Mutex<SharedCallsState>);

#[derive(Default)]
struct SharedCallsState {
    waiting: HashMap<Arc<Shape>, VecDeque<CallWaiter>>,
    tickets: u64,
}

/// A request that waits, or that is part of a call in flight.
pub(super) struct CallWaiter {
    ticket: u64,
    pub(super) amounts: Amounts,
    pub(super) sender: oneshot::Sender<CallTurn>,
}

/// The place of a request among those that wait.
pub(super) struct CallPlace {
    ticket: u64,
    pub(super) receiver: oneshot::Receiver<CallTurn>,
}

/// The end of a request's wait.
pub(super) enum CallTurn {
    /// A leader had it decided.
    Done(Result<Grant, AcquireError>),
    /// It leads now. `SharedCall` is empty, or a call that the last leader left in doubt.
    Lead(SharedCall),
}

/// The requests of one call, except the leader's.
#[derive(Default)]
pub(super) struct SharedCall {
    /// `None`: it was not sent yet.
    pub(super) id: Option<RequestId>,
    /// In order of arrival.
    pub(super) members: Vec<CallWaiter>,
    /// The shares of callers that have left.
    pub(super) gone: Amounts,
    /// True if an earlier leader sent it and got no answer. The new leader must send it again,
    /// under its id, for the same sum.
    pub(super) is_in_doubt: bool,
}

impl SharedCall {
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

impl SharedCalls {
    fn lock(&self) -> MutexGuard<'_, SharedCallsState> {
        lock(&self.0)
    }

    /// Lets a request wait for a call of its shape. `None`: no other request leads, so it leads.
    pub(super) fn enter(&self, shape: &Arc<Shape>, amounts: &Amounts) -> Option<CallPlace> {
        let SharedCallsState { waiting, tickets } = &mut *self.lock();
        let waiters = match waiting.entry(shape.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(VecDeque::new());
                return None;
            }
        };
        *tickets += 1;
        let (sender, receiver) = oneshot::channel();
        waiters.push_back(CallWaiter { ticket: *tickets, amounts: amounts.clone(), sender });
        Some(CallPlace { ticket: *tickets, receiver })
    }

    /// Gives up a place; false if the request is already part of a call, or was told its turn.
    pub(super) fn leave(&self, shape: &Shape, place: &CallPlace) -> bool {
        let mut state = self.lock();
        let Some(waiters) = state.waiting.get_mut(shape) else { return false };
        let at = waiters.iter().position(|waiter| waiter.ticket == place.ticket);
        at.and_then(|at| waiters.remove(at)).is_some()
    }

    /// Takes waiting requests, in order, while their sum with `own` stays within `MILLI_MAX`.
    pub(super) fn gather(&self, shape: &Shape, own: &Amounts) -> SharedCall {
        let mut state = self.lock();
        let Some(waiters) = state.waiting.get_mut(shape) else { return SharedCall::default() };
        waiters.retain(|waiter| !waiter.sender.is_closed());
        let mut sum = own.clone();
        let is_counted = |waiter: &&CallWaiter| {
            sum += &waiter.amounts;
            sum.values().all(|amount| amount.get() <= MILLI_MAX)
        };
        let count = waiters.iter().take_while(is_counted).count();
        SharedCall { members: waiters.drain(..count).collect(), ..SharedCall::default() }
    }

    /// Lets these wait again, before all others.
    pub(super) fn put_back(&self, shape: &Shape, first: Vec<CallWaiter>) {
        if let Some(waiters) = self.lock().waiting.get_mut(shape) {
            to_front(waiters, first);
        }
    }

    /// Ends a caller's lead.
    ///
    /// If the call is in doubt, its first member leads next. Otherwise its members wait again,
    /// before all others, and the first request that waits leads. If none waits, the shape has no
    /// leader. Returns a call in doubt that no caller waits for.
    pub(super) fn pass(&self, shape: &Arc<Shape>, mut call: SharedCall) -> Option<SharedCall> {
        let mut state = self.lock();
        let Entry::Occupied(mut entry) = state.waiting.entry(shape.clone()) else { return None };
        let waiters = entry.get_mut();
        if call.is_in_doubt {
            call = hand_over(call)?;
        } else {
            to_front(waiters, std::mem::take(&mut call.members));
        }
        let is_led = std::iter::from_fn(|| waiters.pop_front())
            .any(|waiter| waiter.sender.send(CallTurn::Lead(SharedCall::default())).is_ok());
        if !is_led {
            entry.remove();
        }
        call.is_in_doubt.then_some(call)
    }
}

fn to_front(waiters: &mut VecDeque<CallWaiter>, first: Vec<CallWaiter>) {
    first.into_iter().rev().for_each(|waiter| waiters.push_front(waiter));
}

/// Lets the first member that still waits lead the call. Returns the call if all callers have
/// left.
fn hand_over(mut call: SharedCall) -> Option<SharedCall> {
    while !call.members.is_empty() {
        let CallWaiter { amounts, sender, .. } = call.members.remove(0);
        match sender.send(CallTurn::Lead(call)) {
            Err(CallTurn::Lead(back)) => call = back,
            _ => return None,
        }
        call.gone += &amounts;
    }
    Some(call)
}

impl std::fmt::Debug for SharedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedCalls").finish_non_exhaustive()
    }
}
