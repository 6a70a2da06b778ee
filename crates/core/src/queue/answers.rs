//! The meaning of the table's answer for the requests of a queue.

use std::sync::Arc;

use super::abandoned::may_have_forgotten;
use super::bucket::KnownImage;
use super::member::Member;
use super::request::{Answer, BucketDemand, Done, Outcome, Purpose, QueuedRequest, Write};
use super::settings::{BUCKETS_MAX, CORRECTION_OUTRUNS_BEFORE_PAUSE, OUTRUNS_BEFORE_PAUSE};
use super::state::{ExtendingExpiry, Flight, SharedWrite, Upkeep, WriteQueue};
use crate::{CompositeBucket, EpochMillis, RequestId, WritePath, extend, is_refill_time_ahead};

type BucketImage = Option<Arc<CompositeBucket>>;

impl<W> WriteQueue<W> {
    /// Takes in the table's answer to the last action.
    pub fn answered(&mut self, answer: Answer, now: EpochMillis) {
        match self.flight.take() {
            Some(Flight::Read(buckets)) => self.answered_read(&buckets, answer, now),
            Some(Flight::SharedWrite) => self.answered_write(answer, now),
            Some(Flight::Upkeep(upkeep, write)) => {
                self.answered_upkeep(upkeep, &write, answer, now)
            }
            None => {}
        }
        self.members().for_each(|member| member.entered_before_call = false);
    }

    fn answered_read(&mut self, buckets: &[usize], answer: Answer, now: EpochMillis) {
        match answer {
            Answer::Read(images) => {
                for (index, image) in buckets.iter().zip(images) {
                    self.observe_claims(*index, image.as_deref(), now);
                    self.set_image(*index, image, now, true);
                }
                if self.outruns_in_a_row == 0 {
                    self.pauses = 0;
                }
                if let Some(shared) = &mut self.shared {
                    shared.has_read_since_attempt = true;
                }
                self.conclude_by_image();
                self.resolve_abandoned();
                self.refuse(|queue, member| queue.refusal_if_passed_over(member, now));
            }
            Answer::TableUnusable => {
                self.fail_waiting();
                self.fail_write();
                self.end_extension();
            }
            _ => self.must_pause = true,
        }
    }

    fn answered_write(&mut self, answer: Answer, now: EpochMillis) {
        match answer {
            Answer::Written(images) => self.written(images, now),
            Answer::ConditionFailed(found) => self.condition_failed(found, now),
            Answer::Busy | Answer::NotSent => {
                self.must_pause = true;
                if self.shared.as_ref().is_some_and(|shared| !shared.is_in_doubt)
                    && let Some(mut shared) = self.shared.take()
                {
                    for member in &mut shared.members {
                        member.attempts -= u32::from(answer == Answer::NotSent);
                    }
                    self.requeue(shared.members);
                }
            }
            Answer::Lost | Answer::Read(_) => self.lost(),
            Answer::TableUnusable => self.fail_write(),
        }
    }

    fn written(&mut self, images: Vec<BucketImage>, now: EpochMillis) {
        let Some(shared) = self.shared.take() else { return };
        let path = shared.write.plans.first().map(|(_, plan)| plan.path);
        // After a lost answer, a success may report an earlier attempt: if a transaction was done,
        // the table answers its repetition with success too. Other writes may have come since then.
        let is_first_attempt = !shared.is_in_doubt;
        self.learn_written(&shared.write, images, shared.may_be_outdated, is_first_attempt, now);
        if shared.is_in_doubt {
            let image = self.buckets[0].image();
            let is_ambiguous = may_have_forgotten(&shared.ids_before, image, &shared.id);
            // An attempt whose answer was lost may still take effect, once other writes have pushed
            // its id out of the item. A second debit admits nothing more; a second return does.
            let may_return_twice = shared.members.iter().any(Member::returns_more_than_it_takes);
            self.counts.ambiguous += u32::from(is_ambiguous || may_return_twice);
        }
        self.end_abandoned();
        (self.outruns_in_a_row, self.pauses) = (0, 0);
        self.finish(shared, path, now);
        // The answer to a transaction has no images. Requests that were passed over need one before
        // they can be refused.
        let is_authoritative = |known: &KnownImage| known.is_authoritative;
        let is_authoritative =
            self.buckets.iter().all(|bucket| bucket.known.as_ref().is_some_and(is_authoritative));
        self.must_read |=
            !is_authoritative && self.waiting.iter().any(|member| member.passed_over_at.is_some());
        self.refuse(|queue, member| queue.refusal_if_passed_over(member, now));
    }

    /// Takes in the result of a write.
    fn learn_written(
        &mut self,
        write: &Write,
        images: Vec<BucketImage>,
        may_be_outdated: [bool; BUCKETS_MAX],
        is_first_attempt: bool,
        now: EpochMillis,
    ) {
        for ((index, plan), image) in write.plans.iter().zip(images) {
            let before = self.buckets[*index].known.as_ref().and_then(|known| known.image.clone());
            let is_ahead = before.as_ref().is_some_and(|before| is_refill_time_ahead(before, now));
            let is_claim = plan.path == WritePath::Claim;
            self.counts.clocks_ahead += u32::from(is_claim && is_ahead);
            if let Some(after) = image.as_deref().filter(|_| may_be_outdated[*index]) {
                // The refill time that the write found in the item shows if another process had
                // claimed. A claim succeeds only if it finds that of `before`, so it found that. Any
                // other write leaves the refill time as it finds it, so `after` has it.
                let found = if is_claim { before.as_deref() } else { Some(after) };
                self.observe_claims(*index, found, now);
            }
            let is_authoritative =
                image.is_some() || is_first_attempt && plan.path == WritePath::Create;
            let after = image.or_else(|| plan.changed(before.as_deref()).map(Arc::new));
            self.set_image(*index, after, now, is_authoritative);
        }
    }

    fn condition_failed(&mut self, found: Vec<Option<BucketImage>>, now: EpochMillis) {
        let Some(mut shared) = self.shared.take() else { return };
        for ((index, _), image) in shared.write.plans.iter().zip(found) {
            let Some(image) = image else { continue };
            let is_own = image.as_ref().is_some_and(|image| image.request_ids.contains(&shared.id));
            if shared.may_be_outdated[*index] && !is_own {
                self.observe_claims(*index, image.as_deref(), now);
            }
            // The shared write is taken out of the queue here, so `set_image` does not reach its
            // requests. They entered before it was sent, so they may be refused from this answer,
            // too.
            shared.members.iter_mut().for_each(|member| member.has_fresh_image[*index] = true);
            self.set_image(*index, image, now, true);
        }
        self.shared = Some(shared);
        self.conclude_by_image();
        if let Some(mut shared) = self.shared.take() {
            self.outruns_in_a_row += 1;
            self.requests_max =
                (shared.members.iter().filter(|member| member.may_be_refused()).count() / 2).max(1);
            shared.members.iter_mut().for_each(|member| member.was_outrun = true);
            self.make_abandoned_if_in_doubt(&shared);
            self.requeue(shared.members);
        }
        self.resolve_abandoned();
        self.refuse(|queue, member| queue.refusal_after_outrun(member, now));
        self.pause_after_outruns();
    }

    /// Resolves the requests that are refused.
    fn refuse(&mut self, refused: impl Fn(&Self, &Member<W>) -> Option<Outcome>) {
        for member in std::mem::take(&mut self.waiting) {
            match refused(self, &member) {
                Some(outcome) => self.resolve(member, outcome),
                None => self.waiting.push(member),
            }
        }
    }

    /// Pauses after several outrun writes in a row ([`OUTRUNS_BEFORE_PAUSE`]).
    fn pause_after_outruns(&mut self) {
        let only_corrects = self.only_corrects();
        let most =
            if only_corrects { CORRECTION_OUTRUNS_BEFORE_PAUSE } else { OUTRUNS_BEFORE_PAUSE };
        if self.outruns_in_a_row > most {
            self.must_pause = true;
            // Other processes write during the pause. If only corrections wait, the queue reads
            // after the pause: a read costs less than another write that fails. Acquires and leases
            // are written without a read, because it would delay them.
            self.must_read = only_corrects;
        }
    }

    fn lost(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.is_in_doubt = true;
        }
        // The lost write may have changed the bucket, and time has passed: nothing may be refused
        // by an earlier answer.
        for member in self.members() {
            member.has_fresh_image = Default::default();
            member.passed_over_at = None;
        }
        self.must_pause = true;
    }

    /// Resolves the requests of a write that took effect.
    pub(super) fn finish(
        &mut self,
        shared: SharedWrite<W>,
        path: Option<WritePath>,
        now: EpochMillis,
    ) {
        let any_corrects_upwards = shared.members.iter().any(|member| member.corrects_upwards());
        self.counts.forced += u32::from(shared.draft.is_forced && any_corrects_upwards);
        // A claim also sets the expiry, late enough for all that it takes. After a write that is no
        // claim, and whose image is only derived, a read must show if the item expires too early.
        let is_authoritative =
            self.buckets[0].known.as_ref().is_some_and(|known| known.is_authoritative);
        let must_read_first = path != Some(WritePath::Claim) && !is_authoritative;
        let expires_too_early = |image| extend(image, now).is_some();
        let may_expire_early = any_corrects_upwards
            && (must_read_first || self.buckets[0].image().is_some_and(expires_too_early));
        let mut must_extend = Vec::new();
        for mut member in shared.members {
            let is_forced = shared.draft.is_forced && member.corrects_upwards();
            let done = Done { path, is_forced, ..member.done(self.images()) };
            match member.waiter.take() {
                Some(waiter) if may_expire_early && member.corrects_upwards() => {
                    must_extend.push((member.request.id, waiter, done));
                }
                Some(waiter) => self.resolved.push((waiter, Outcome::Done(done))),
                None => self.done_unseen(member.request, done),
            }
        }
        if may_expire_early {
            self.extend_expiry_for(must_extend, must_read_first);
        }
    }

    pub(super) fn extend_expiry_for(
        &mut self,
        done: Vec<(RequestId, W, Done)>,
        must_read_first: bool,
    ) {
        let none = || ExtendingExpiry { done: Vec::new(), must_read_first: false, tries: 0 };
        let extending = self.extending_expiry.get_or_insert_with(none);
        extending.done.extend(done);
        extending.must_read_first |= must_read_first;
    }

    /// Adds a request that gives back the tokens of an acquire whose caller left.
    pub(super) fn give_back(&mut self, id: RequestId, mut demands: Vec<BucketDemand>) {
        for demand in &mut demands {
            demand.amounts = -&demand.amounts;
        }
        let (purpose, started_at) = (Purpose::ReturnForLeaver, EpochMillis::MIN);
        let request =
            QueuedRequest { id, purpose, demands, started_at, may_send_back_for_limits: false };
        self.waiting.insert(0, Member::new(request, None));
    }

    /// Puts requests back in front of those that came later. Requests that have used all of their
    /// attempts end, and those that nobody wants any more are dropped.
    pub(super) fn requeue(&mut self, members: Vec<Member<W>>) {
        let later = std::mem::take(&mut self.waiting);
        for member in members.into_iter().filter(Member::is_wanted) {
            if member.attempts < member.attempts_max() {
                self.waiting.push(member);
            } else {
                let is_in_doubt = self.has_abandoned_write(&member.request.id);
                self.resolve(member, Outcome::Contended { is_in_doubt });
            }
        }
        self.waiting.extend(later);
        // Tokens of callers that left go back first.
        self.waiting.sort_by_key(|member| member.request.purpose != Purpose::ReturnForLeaver);
    }

    fn fail_write(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        self.make_abandoned_if_in_doubt(&shared);
        self.fail(shared.members);
    }

    fn fail_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.fail(waiting);
    }

    /// Ends these requests as failed, but returns for leavers wait again.
    fn fail(&mut self, members: Vec<Member<W>>) {
        let is_return = |member: &Member<W>| member.request.purpose == Purpose::ReturnForLeaver;
        let (returns, failed): (_, Vec<_>) = members.into_iter().partition(is_return);
        self.requeue(returns);
        for member in failed {
            // A write of it may have taken effect.
            let is_in_doubt = self.has_abandoned_write(&member.request.id);
            self.resolve(member, Outcome::Failed { is_in_doubt });
        }
    }

    fn answered_upkeep(&mut self, upkeep: Upkeep, write: &Write, answer: Answer, now: EpochMillis) {
        let Some((index, _)) = write.plans.first() else { return };
        match (answer, upkeep) {
            (Answer::Written(images), _) => {
                self.learn_written(write, images, Default::default(), true, now);
                (self.outruns_in_a_row, self.pauses) = (0, 0);
                if upkeep == Upkeep::Reconfigure {
                    self.buckets[*index].note_reconfigured(now);
                }
            }
            (Answer::ConditionFailed(found), _) => {
                for image in found.into_iter().flatten() {
                    self.set_image(*index, image, now, true);
                }
                self.resolve_abandoned();
                match upkeep {
                    Upkeep::Reconfigure => self.buckets[*index].note_outrun_reconfiguration(now),
                    Upkeep::Repair => {
                        self.outruns_in_a_row += 1;
                        self.pause_after_outruns();
                    }
                    // Another writer moved the expiry at least as far, or removed it or the item.
                    Upkeep::Extend => self.end_extension(),
                }
            }
            // This write failed, or its answer was lost. The request that waits for its refusal
            // does not fail for that reason. The queue refuses it from a recent image, or reads
            // first.
            (_, Upkeep::Reconfigure) => {
                self.members().for_each(|member| member.has_fresh_image = Default::default());
            }
            (Answer::TableUnusable, Upkeep::Repair) => self.fail_waiting(),
            (Answer::TableUnusable, Upkeep::Extend) => {
                self.counts.unextended += 1;
                self.end_extension();
            }
            (_, Upkeep::Repair | Upkeep::Extend) => self.must_pause = true,
        }
    }

    /// Compares the item that was found with the known image: did another process claim?
    fn observe_claims(&mut self, index: usize, found: Option<&CompositeBucket>, now: EpochMillis) {
        let interval = self.settings.interval;
        let bucket = &mut self.buckets[index];
        let before = bucket.known.as_ref().and_then(|known| known.image.clone());
        if let (Some(before), Some(found)) = (before, found) {
            bucket.contention.observe(&before, found, now, interval);
        }
    }

    /// Replaces the known image of a bucket by that of an answer, or by one that was computed from
    /// a write. It does so even if another queue of the process has learned a newer one, which
    /// comes back with the next [`learn_unless_older`](WriteQueue::learn_unless_older). A computed
    /// image is authoritative only if the table acknowledged a new item.
    fn set_image(
        &mut self,
        index: usize,
        image: BucketImage,
        now: EpochMillis,
        is_authoritative: bool,
    ) {
        let bucket = &mut self.buckets[index];
        bucket.known = Some(KnownImage { image, as_of: now, is_authoritative });
        bucket.restart_quiet_time_if_claimed(now);
        for member in self.members() {
            member.has_fresh_image[index] = is_authoritative && member.entered_before_call;
        }
    }

    /// The time of the newest answer on the buckets, which may have come to another lane.
    pub(super) fn answered_at(&self) -> EpochMillis {
        let as_of = self.buckets.iter().filter_map(|bucket| Some(bucket.known.as_ref()?.as_of));
        as_of.max().unwrap_or(EpochMillis::MIN)
    }
}
