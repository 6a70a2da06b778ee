//! Putting the next write together, or sending a lost one again.

use std::sync::Arc;

use super::bucket::QueueBucket;
use super::draft::{BucketDraft, Draft};
use super::member::Member;
use super::place::{Placement, item_follows};
use super::request::{Action, Outcome, Purpose, Write};
use super::settings::BUCKETS_MAX;
use super::state::{Flight, SharedWrite, Upkeep, WriteQueue};
use crate::{EpochMillis, RefillHint, RequestId, WritePlan};

impl<W> WriteQueue<W> {
    /// Sends a write again whose answer was lost.
    pub(super) fn repeat(&mut self, now: EpochMillis) -> Option<Action> {
        let shared = self.shared.as_mut()?;
        if shared.members.iter().all(|member| member.waiter.is_none()) {
            // No caller waits for the write any more. The queue remembers that it may have
            // happened.
            self.give_up_write();
            return None;
        }
        if shared.draft.returns_tokens() && !shared.has_read_since_attempt {
            return Some(self.read_all());
        }
        let shared = self.shared.as_ref()?;
        // In two cases the draft cannot be written again. (1) It both corrects and takes for
        // acquires, and an item got other limits meanwhile (see `item_follows`). (2) An item was
        // deleted, and the draft has no limits to make it anew.
        let takes_and_corrects = shared.draft.acquires && shared.draft.corrects;
        let is_impossible = |(bucket, drafted): (&QueueBucket, &BucketDraft)| {
            drafted.configuration.as_ref().map_or(bucket.image().is_none(), |configuration| {
                takes_and_corrects && !item_follows(bucket, configuration, &drafted.must_cover)
            })
        };
        if self.buckets.iter().zip(&shared.draft.buckets).any(is_impossible) {
            self.give_up_write();
            return None;
        }
        // A plan assumes the time at which it was made, so it is made anew. A transaction is sent
        // again unchanged: its `ClientRequestToken` says that it is the same.
        if self.buckets.len() == 1
            && !self.settings.is_transactional
            && let Some(mut shared) = self.shared.take()
        {
            shared.may_be_outdated = self.may_be_outdated(&shared.members);
            let plans = self.plans(&shared.draft, &shared.id, shared.may_be_outdated, now);
            let id = shared.write.id.clone().map(|(id, generation)| (id, generation + 1));
            shared.write = Arc::new(Write { plans, id });
            self.shared = Some(shared);
        }
        Some(self.send_shared())
    }

    pub(super) fn compose(
        &mut self,
        now: EpochMillis,
        new_id: &mut dyn FnMut() -> RequestId,
    ) -> Action {
        let is_unknown = |bucket: &usize| self.buckets[*bucket].known.is_none();
        let unknown: Vec<_> = (0..self.buckets.len()).filter(is_unknown).collect();
        if !unknown.is_empty() {
            return self.read(unknown);
        }
        if std::mem::take(&mut self.must_read) || self.should_read_first(now) {
            return self.read_all();
        }
        self.forget_surplus_abandoned();
        let buckets = self.buckets.iter().map(|_| BucketDraft::default()).collect();
        let mut draft = Draft { buckets, ..Draft::default() };
        let mut members = Vec::new();
        let (mut wants_read, mut upkeep) = (false, None);
        let mut taking = 0;
        let mut refused = Vec::new();
        for mut member in std::mem::take(&mut self.waiting) {
            // After an outrun fewer requests share a write: a write that needs the whole balance
            // loses to any other that takes some of it.
            if member.may_be_refused() && self.outruns_in_a_row > 0 && taking >= self.requests_max {
                // It was not passed over, only left for a later write.
                member.passed_over_at = None;
                self.waiting.push(member);
                continue;
            }
            match self.place(&mut draft, &mut member, now) {
                Placement::In => {
                    taking += usize::from(member.may_be_refused());
                    // A newer image shows that it fits.
                    member.refusal = None;
                    members.push(member);
                    continue;
                }
                Placement::Resolved(Outcome::Refused(limits)) => {
                    refused.push((member, limits));
                    continue;
                }
                Placement::Resolved(outcome) => {
                    self.resolve(member, outcome);
                    continue;
                }
                Placement::Later => member.passed_over_at = None,
                Placement::PassedOver => _ = member.passed_over_at.get_or_insert(now),
                Placement::Read => wants_read = true,
                Placement::Upkeep(kind, bucket, plan) if members.is_empty() && upkeep.is_none() => {
                    upkeep = Some((kind, bucket, plan, member.request.id.clone()));
                }
                Placement::Upkeep(..) => {}
            }
            self.waiting.push(member);
        }
        let caller_left = |member: &Member<W>| member.waiter.is_none();
        // A write that carries a caller goes first. A write of returns for leavers alone goes
        // after a read that a waiting request needs.
        let carries_caller = !members.iter().all(caller_left);
        let may_write_returns_alone = !carries_caller && !members.is_empty() && !wants_read;
        // Only a waiting caller can send that write. If all callers were refused now, nobody would
        // send it, and a client that asks again and again would be refused for ever for lack of
        // those tokens. So the refusals wait for the write, once.
        let needs_caller = may_write_returns_alone && self.waiting.iter().all(caller_left);
        for (mut member, limits) in refused {
            if needs_caller && member.refusal.is_none() {
                member.refusal = Some(limits);
                self.waiting.push(member);
            } else {
                self.resolve(member, Outcome::Refused(limits));
            }
        }
        if carries_caller || may_write_returns_alone && !self.has_no_caller() {
            return self.launch(draft, members, now, new_id);
        }
        members.append(&mut self.waiting);
        self.waiting = members;
        match upkeep {
            Some((kind, bucket, plan, id)) => {
                if kind == Upkeep::Reconfigure {
                    self.note_reconfiguring(bucket, &id);
                }
                self.send_upkeep(kind, bucket, plan)
            }
            None if wants_read => self.read_all(),
            None => Action::Idle,
        }
    }

    /// Notes that the next write brings an item to the limits of this request, before the request
    /// is refused. This happens once for each request and bucket.
    fn note_reconfiguring(&mut self, bucket: usize, id: &RequestId) {
        let mut waiting = self.waiting.iter_mut();
        if let Some(member) = waiting.find(|member| member.request.id == *id) {
            member.may_reconfigure[bucket] = false;
            let configuration = &member.request.demands[bucket].configuration;
            self.buckets[bucket].note_reconfiguring(configuration);
        }
    }

    /// True if an acquire waits and the image of a bucket is probably out of date: a read then
    /// costs less than a write that fails. All of this must hold:
    ///
    /// - The last claim, and the table's last answer, are older than the claim interval.
    /// - Images as old as that usually turned out to be out of date, because another process had
    ///   claimed.
    /// - Answers did not usually show a claim within the last interval. (If they do, the plan
    ///   assumes such a claim, and needs no read.)
    /// - None of the waiting requests has a fresh image.
    fn should_read_first(&self, now: EpochMillis) -> bool {
        let takes = |member: &Member<W>| member.request.purpose == Purpose::Acquire;
        let should_read_first = |(index, bucket): (usize, &QueueBucket)| {
            let has_fresh_image = self.waiting.iter().any(|member| member.has_fresh_image[index]);
            let contention = bucket.contention;
            bucket.needs_claim(self.settings, now)
                && bucket.has_old_answer(self.settings, now)
                && contention.is_usually_outdated()
                && !contention.is_usually_claimed()
                && !has_fresh_image
        };
        self.waiting.iter().any(takes) && self.buckets.iter().enumerate().any(should_read_first)
    }

    fn launch(
        &mut self,
        draft: Draft,
        members: Vec<Member<W>>,
        now: EpochMillis,
        new_id: &mut dyn FnMut() -> RequestId,
    ) -> Action {
        // The write gets the id of one of its requests: a correction or a lease, if it has one.
        // If that request enters again later, the item shows that it took effect.
        let may_lend_id = |member: &&Member<W>| {
            member.request.purpose != Purpose::ReturnForLeaver
                && !self.unusable_ids.contains(&member.request.id)
        };
        let lender = members.iter().filter(may_lend_id);
        let lender = lender.min_by_key(|member| member.request.purpose == Purpose::Acquire);
        // No two plans under one id may share a generation: the token of a transaction is made of
        // both, and the table takes two transactions with one token for the same one. While a
        // request is in the queue, its attempts grow with each plan. (The attempt of a plan that
        // was not sent is taken back: the table never saw it.) If the request leaves and enters
        // again, its attempts begin at zero. That does no harm, whatever became of an earlier plan
        // under its id:
        //
        // - It failed: it had no effect.
        // - It is lost: the id is unusable (`note_lost_id`), so a later write gets another one.
        // - It succeeded: the request is not written again.
        //
        // The generation is the number of attempts before this plan.
        let generation = lender.map_or(0, |member| member.attempts);
        let id = lender.map_or_else(new_id, |member| member.request.id.clone());
        let may_be_outdated = self.may_be_outdated(&members);
        let plans = self.plans(&draft, &id, may_be_outdated, now);
        let ids_before = self.buckets[0].image().map(|image| image.request_ids.clone());
        self.shared = Some(SharedWrite {
            draft,
            write: Arc::new(Write { plans, id: Some((id.clone(), generation)) }),
            id,
            members,
            is_in_doubt: false,
            ids_before: ids_before.unwrap_or_default(),
            has_read_since_attempt: false,
            may_be_outdated,
        });
        self.send_shared()
    }

    /// For each bucket: true if `has_fresh_image` is false for all of these requests,
    /// so that the image may be out of date.
    fn may_be_outdated(&self, members: &[Member<W>]) -> [bool; BUCKETS_MAX] {
        std::array::from_fn(|index| !members.iter().any(|member| member.has_fresh_image[index]))
    }

    fn plans(
        &self,
        draft: &Draft,
        id: &RequestId,
        may_be_outdated: [bool; BUCKETS_MAX],
        now: EpochMillis,
    ) -> Vec<(usize, WritePlan)> {
        let fenced_off: Vec<_> = self.abandoned.iter().map(|write| write.id.clone()).collect();
        let ids = (id, fenced_off.as_slice());
        let plan = |(index, (bucket, drafted)): (usize, (&QueueBucket, &BucketDraft))| {
            let assumes_claim = may_be_outdated[index]
                && bucket.contention.is_usually_claimed()
                && (bucket.needs_claim(self.settings, now) || !draft.acquires);
            let hint =
                if assumes_claim { RefillHint::AssumeClaimed } else { RefillHint::TrustImage };
            (index, drafted.plan(bucket, draft, ids, (self.settings, hint), now))
        };
        self.buckets.iter().zip(&draft.buckets).enumerate().map(plan).collect()
    }

    fn send_shared(&mut self) -> Action {
        self.flight = Some(Flight::SharedWrite);
        self.note_entered_before_call();
        let Some(shared) = &mut self.shared else { return Action::Idle };
        for member in &mut shared.members {
            member.attempts += 1;
            member.was_outrun = false;
        }
        shared.has_read_since_attempt = false;
        Action::Write(shared.write.clone())
    }

    pub(super) fn send_upkeep(&mut self, upkeep: Upkeep, bucket: usize, plan: WritePlan) -> Action {
        self.note_entered_before_call();
        let write = Arc::new(Write { plans: vec![(bucket, plan)], id: None });
        self.flight = Some(Flight::Upkeep(upkeep, write.clone()));
        Action::Write(write)
    }

    pub(super) fn read_all(&mut self) -> Action {
        self.read((0..self.buckets.len()).collect())
    }

    pub(super) fn read(&mut self, buckets: Vec<usize>) -> Action {
        self.note_entered_before_call();
        self.flight = Some(Flight::Read(buckets.clone()));
        Action::Read(buckets)
    }

    fn note_entered_before_call(&mut self) {
        self.members().for_each(|member| member.entered_before_call = true);
    }
}
