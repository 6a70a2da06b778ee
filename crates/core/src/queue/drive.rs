//! The calls of a queue's driver: requests enter and leave, and the next action is decided.

use super::member::Member;
use super::request::{Action, Done, Outcome, Purpose, QueuedRequest, StateOnLeave};
use super::settings::EXTENSIONS_MAX;
use super::state::{Upkeep, WriteQueue};
use crate::{EpochMillis, RequestId, extend};

impl<W> WriteQueue<W> {
    /// Adds a request. It may be resolved at once. If a request with its id is in the queue, that
    /// one gets the new caller.
    pub fn enter(&mut self, request: QueuedRequest, waiter: W, now: EpochMillis) {
        if self.has_no_caller() {
            // The pause was for requests whose callers have left. A new request need not wait for
            // it.
            self.must_pause = false;
        }
        let id = &request.id;
        if let Some(at) = self.ended_without_caller.iter().position(|(known, _)| known == id) {
            let (_, leased) = self.ended_without_caller.remove(at);
            let (images, dropped) = (self.images(), self.lacking(&request));
            let (is_forced, attempts) = (false, 0);
            let done = |leased| Done { path: None, images, leased, dropped, is_forced, attempts };
            let outcome = leased.map(done).map_or(Outcome::Ambiguous, Outcome::Done);
            self.resolved.push((waiter, outcome));
            return;
        }
        // A request that gives back an acquire has the id of that acquire.
        let is_same = |member: &&mut Member<W>| {
            member.request.id == *id && member.request.purpose != Purpose::ReturnForLeaver
        };
        if let Some(member) = self.members().find(is_same) {
            member.waiter = Some(waiter);
            return;
        }
        let member = Member::new(request, Some(waiter));
        match self.refusal_at_entry(&member, now) {
            Some(refused) => self.resolve(member, refused),
            None => self.waiting.push(member),
        }
    }

    /// Notes that a request took effect, and that its caller left without learning it. The next
    /// write gives back the tokens of an acquire. A correction or a lease stands, and gets its
    /// outcome when it enters again.
    pub fn done_unseen(&mut self, request: QueuedRequest, done: Done) {
        match request.purpose {
            Purpose::Acquire => self.give_back(request.id, request.demands),
            Purpose::Correct | Purpose::Lease(_) => {
                self.note_ended_without_caller(request.id, Some(done.leased));
            }
            Purpose::ReturnForLeaver => {}
        }
    }

    /// Makes a correction give up its conditions on the balance, from its next write on. For a
    /// correction whose time is nearly up.
    pub fn force(&mut self, id: &RequestId) {
        if let Some(member) = self.members().find(|member| member.request.id == *id) {
            member.is_forced = true;
        }
    }

    /// Lets the caller of a request leave, and returns the driver's handle of the caller. A waiting
    /// request is removed. A request that a write carries stays. If the request took effect, and
    /// only waits until the item's expiry is extended, its caller leaves with the result.
    pub fn leave(&mut self, id: &RequestId) -> (StateOnLeave, Option<W>) {
        if let Some(extending) = &mut self.extending_expiry
            && let Some(at) = extending.done.iter().position(|(known, ..)| known == id)
        {
            let (_, waiter, done) = extending.done.swap_remove(at);
            return (StateOnLeave::Done(done), Some(waiter));
        }
        let is_same = |member: &Member<W>| member.request.id == *id && member.waiter.is_some();
        let shared = self.shared.as_mut().map(|shared| &mut shared.members);
        if let Some(member) = shared.into_iter().flatten().find(|member| is_same(member)) {
            return (StateOnLeave::InDoubt, member.waiter.take());
        }
        let is_in_doubt = self.abandoned.iter().any(|write| write.has(id));
        let waiting = self.waiting.iter().position(is_same);
        let member = waiting.map(|at| self.waiting.remove(at));
        let (waiter, refusal) = member.map(|member| (member.waiter, member.refusal)).unzip();
        let state = match refusal.flatten() {
            _ if is_in_doubt => StateOnLeave::InDoubt,
            Some(limits) => StateOnLeave::Refused(limits),
            None => StateOnLeave::Nothing,
        };
        (state, waiter.flatten())
    }

    /// The next action. Not to be asked for while an answer is awaited.
    pub fn next(&mut self, now: EpochMillis, new_id: &mut dyn FnMut() -> RequestId) -> Action {
        debug_assert!(!self.has_call_in_flight(), "one request to the table at a time");
        if self.has_no_caller() {
            return Action::Idle;
        }
        if std::mem::take(&mut self.must_pause) {
            self.pauses += 1;
            // Other processes write during the pause. An earlier answer may refuse only if it is
            // recent enough.
            self.members().for_each(|member| member.has_fresh_image = Default::default());
            let corrections_were_outrun = self.outruns_in_a_row > 0 && self.only_corrects();
            return Action::Pause { pauses_in_a_row: self.pauses, corrections_were_outrun };
        }
        let action = self.extend_expiry(now).or_else(|| self.repeat(now));
        action.unwrap_or_else(|| self.compose(now, new_id))
    }

    /// Moves the expiry of an item that would expire before its debt is refilled.
    fn extend_expiry(&mut self, now: EpochMillis) -> Option<Action> {
        let extending = self.extending_expiry.as_mut()?;
        if std::mem::take(&mut extending.must_read_first) {
            return Some(self.read(vec![0]));
        }
        extending.tries += 1;
        match self.buckets[0].image().and_then(|image| extend(image, now)) {
            Some(plan) if extending.tries <= EXTENSIONS_MAX => {
                Some(self.send_upkeep(Upkeep::Extend, 0, plan))
            }
            plan => {
                self.counts.unextended += u32::from(plan.is_some());
                self.end_extension();
                None
            }
        }
    }

    pub(super) fn end_extension(&mut self) {
        let done =
            self.extending_expiry.take().map(|extending| extending.done).into_iter().flatten();
        self.resolved.extend(done.map(|(_, waiter, done)| (waiter, Outcome::Done(done))));
    }
}
