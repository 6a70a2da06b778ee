//! Resolves writes whose answers were lost, as soon as an image shows if they happened.

use super::abandoned::{AbandonedWrite, may_have_forgotten};
use super::bucket::QueueBucket;
use super::member::Member;
use super::request::{BucketDemand, Done, Outcome, Purpose, QueuedRequest};
use super::settings::{ENDED_WITHOUT_CALLER_MAX, FENCED_OFF_MAX, UNUSABLE_IDS_MAX};
use super::state::{SharedWrite, WriteQueue};
use crate::{Amounts, LimitName, RequestId};

impl<W> WriteQueue<W> {
    /// Compares the shared write with the known image, and finishes it if the image shows its id.
    /// If the write is in doubt and the item of bucket 0 may have forgotten the write's id, the
    /// write becomes abandoned, and its requests wait again. Bucket 0 stands for all buckets
    /// ([`AbandonedWrite::ids_before`]).
    pub(super) fn conclude_by_image(&mut self) {
        let Some(shared) = &self.shared else { return };
        if self.is_shown(&shared.id) {
            (self.outruns_in_a_row, self.pauses) = (0, 0);
            if let Some(shared) = self.shared.take() {
                self.end_abandoned();
                self.finish(shared, None, self.answered_at());
            }
            return;
        }
        let image = self.buckets[0].image();
        if shared.is_in_doubt && may_have_forgotten(&shared.ids_before, image, &shared.id) {
            self.give_up_write();
        }
    }

    /// Ends all abandoned writes. The write that just happened is their fence:
    ///
    /// - It has put their ids into the item. So none of them can happen while the item remembers
    ///   these.
    /// - It succeeded only because the item had none of these ids. So none of them had happened,
    ///   unless the item had forgotten its id by then (`may_have_forgotten`): then it is ambiguous.
    ///
    /// A write that had not happened may count as ambiguous, too. The image here is from after the
    /// fence. The item remembers four ids, and the fence puts up to three into it. These may push
    /// out the last of `ids_before`.
    ///
    /// Some waiting requests of an ambiguous write must not be repeated (`must_not_repeat`). The
    /// queue ends these as ambiguous. The other requests of the write keep waiting.
    pub(super) fn end_abandoned(&mut self) {
        let abandoned = std::mem::take(&mut self.abandoned);
        self.end_fenced(abandoned);
    }

    fn end_fenced(&mut self, abandoned: Vec<AbandonedWrite>) {
        for write in abandoned {
            if may_have_forgotten(&write.ids_before, self.buckets[0].image(), &write.id) {
                self.count_as_ambiguous(&write, must_not_repeat);
            }
        }
    }

    /// Looks at the abandoned writes, newest first. If an image shows the id of one, that write
    /// happened. It fenced the earlier ones, so these end as in
    /// [`end_abandoned`](Self::end_abandoned). (Their own ids prove nothing: the fence may have put
    /// them into the item.) If the item of bucket 0 may have forgotten the id, the write counts as
    /// ambiguous, and stays.
    pub(super) fn resolve_abandoned(&mut self) {
        if self.abandoned.iter().any(|write| self.is_shown(&write.id)) {
            // An abandoned write happened. The shared write requires that it did not, so the shared
            // write cannot succeed.
            self.give_up_write();
        }
        let mut abandoned = std::mem::take(&mut self.abandoned);
        while let Some(mut write) = abandoned.pop() {
            if self.is_shown(&write.id) {
                // A request that an earlier write carried, too, gets the result of this one, which
                // happened.
                for earlier in &mut abandoned {
                    earlier.requests.retain(|request| !write.has(&request.id));
                }
                self.end_fenced(abandoned);
                self.resolve_happened(write);
                return;
            }
            let image = self.buckets[0].image();
            if may_have_forgotten(&write.ids_before, image, &write.id) {
                // The write counts as ambiguous now, and is kept: it may still happen, so the next
                // write that carries requests must fence it. The queue replaces `ids_before` by the
                // ids that the item has now. The write counts as ambiguous again only when the item
                // has dropped all of these. While there is no item, it counts again with each
                // answer.
                let ids = image.map(|image| image.request_ids.clone());
                write.ids_before = ids.unwrap_or_default();
                self.count_as_ambiguous(&write, must_not_repeat);
            }
            self.abandoned.insert(0, write);
        }
    }

    /// True if the image of a bucket has the id of a write.
    pub(super) fn is_shown(&self, id: &RequestId) -> bool {
        let mut images = self.buckets.iter().filter_map(|bucket| bucket.image());
        images.any(|image| image.request_ids.contains(id))
    }

    /// Counts this write as ambiguous, and ends those of its waiting requests that `ends` selects.
    fn count_as_ambiguous(&mut self, write: &AbandonedWrite, ends: impl Fn(&Member<W>) -> bool) {
        self.counts.ambiguous += 1;
        for request in &write.requests {
            let waits = self.waiting.iter().any(|member| member.request.id == request.id);
            if matches!(request.purpose, Purpose::Lease(_)) && !waits {
                self.note_ended_without_caller(request.id.clone(), None);
            }
            let is_same = |member: &mut Member<W>| request.is(&member.request) && ends(member);
            for member in self.waiting.extract_if(.., is_same).collect::<Vec<_>>() {
                self.resolve(member, Outcome::Ambiguous);
            }
        }
    }

    /// Resolves the requests of a write that happened although its answer was lost.
    pub(super) fn resolve_happened(&mut self, write: AbandonedWrite) {
        self.unusable_ids.retain(|id| *id != write.id);
        let mut finished = Vec::new();
        let mut any_corrects_upwards = false;
        for request in write.requests {
            any_corrects_upwards |= request.corrects_upwards();
            let at = self.waiting.iter().position(|member| request.is(&member.request));
            match (at.map(|at| self.waiting.remove(at)), request.purpose) {
                (Some(mut member), _) => {
                    member.dropped = self.lacking(&member.request);
                    let done = Done { leased: request.leased, ..member.done(self.images()) };
                    finished.extend(member.waiter.take().map(|waiter| (request.id, waiter, done)));
                }
                (None, Purpose::Acquire) => self.give_back(request.id, request.demands),
                (None, Purpose::Correct | Purpose::Lease(_)) => {
                    self.note_ended_without_caller(request.id, Some(request.leased));
                }
                (None, Purpose::ReturnForLeaver) => {}
            }
        }
        if any_corrects_upwards {
            self.extend_expiry_for(finished, false);
        } else {
            self.resolved.extend(
                finished.into_iter().map(|(_, waiter, done)| (waiter, Outcome::Done(done))),
            );
        }
    }

    /// The limits of a correction that the known items lack. If an earlier attempt made the
    /// correction, it left these out.
    pub(super) fn lacking(&self, request: &QueuedRequest) -> Vec<LimitName> {
        if request.purpose != Purpose::Correct {
            return Vec::new();
        }
        let of_bucket = |(bucket, demand): (&QueueBucket, &BucketDemand)| {
            let Some(image) = bucket.image() else { return Vec::new() };
            let lacks = |limit: &&LimitName| !image.limits.contains_key(*limit);
            demand.amounts.keys().filter(lacks).cloned().collect()
        };
        self.buckets.iter().zip(&request.demands).flat_map(of_bucket).collect()
    }

    pub(super) fn note_ended_without_caller(&mut self, id: RequestId, leased: Option<Amounts>) {
        self.ended_without_caller.push((id, leased));
        let surplus = self.ended_without_caller.len().saturating_sub(ENDED_WITHOUT_CALLER_MAX);
        self.ended_without_caller.drain(..surplus);
    }

    /// Remembers a write that is not sent again, if it is in doubt.
    pub(super) fn make_abandoned_if_in_doubt(&mut self, shared: &SharedWrite<W>) {
        if shared.is_in_doubt {
            let (id, ids_before) = (&shared.id, shared.ids_before.clone());
            self.abandoned.push(AbandonedWrite::new(id, &shared.members, ids_before));
            self.note_lost_id(id.clone());
        }
    }

    /// Forgets the oldest abandoned writes if the next write cannot fence all of them. A forgotten
    /// write may still happen, so its requests are not written again.
    pub(super) fn forget_surplus_abandoned(&mut self) {
        let surplus = self.abandoned.len().saturating_sub(FENCED_OFF_MAX);
        for write in self.abandoned.drain(..surplus).collect::<Vec<_>>() {
            self.count_as_ambiguous(&write, |_| true);
        }
    }

    /// Keeps the id of a lost write from being used for another write. A fence puts the id into the
    /// item even if the lost write never happened, so an item with this id would not prove that the
    /// other write happened. The oldest ids are forgotten, but none that an item has, or that a
    /// fence may still put there.
    pub(super) fn note_lost_id(&mut self, id: RequestId) {
        self.unusable_ids.push(id);
        let may_be_forgotten = |id: &&RequestId| {
            !self.is_shown(id) && !self.abandoned.iter().any(|write| write.id == **id)
        };
        let mut oldest: Vec<_> =
            self.unusable_ids.iter().filter(may_be_forgotten).cloned().collect();
        oldest.truncate(oldest.len().saturating_sub(UNUSABLE_IDS_MAX));
        self.unusable_ids.retain(|id| !oldest.contains(id));
    }

    /// Stops sending a write whose answer was lost.
    pub(super) fn give_up_write(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        self.make_abandoned_if_in_doubt(&shared);
        self.requeue(shared.members);
    }
}

/// True for a request that is not written again if a lost write of it may have happened: a lease,
/// which may return tokens, or a request that gives back any. Done twice, it would admit too much.
/// Every other request is written again: done twice, it takes too much, which is the safe
/// direction.
fn must_not_repeat<W>(member: &Member<W>) -> bool {
    member.returns_tokens() || matches!(member.request.purpose, Purpose::Lease(_))
}
