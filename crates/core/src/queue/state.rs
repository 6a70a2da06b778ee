//! The state of a queue, and what can be read from it.

use std::sync::Arc;

use super::abandoned::AbandonedWrite;
use super::bucket::{KnownImage, QueueBucket};
use super::contention::ContentionEstimate;
use super::draft::Draft;
use super::member::Member;
use super::request::{Done, Outcome, Write};
use super::settings::{BUCKETS_MAX, Counts, QueueSettings};
use crate::{Amounts, BucketId, CompositeBucket, RequestId};

/// The requests of one process on one bucket, or on the buckets of a child and its parent.
///
/// `W` is the driver's handle of a waiting caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WriteQueue<W> {
    pub(super) settings: QueueSettings,
    pub(super) buckets: Vec<QueueBucket>,
    pub(super) waiting: Vec<Member<W>>,
    /// The call that the table has not answered.
    pub(super) flight: Option<Flight>,
    /// The write of requests that is in flight or in doubt, also if it serves one request alone.
    /// Upkeep is never here; it is in `flight`.
    pub(super) shared: Option<SharedWrite<W>>,
    /// Requests that took effect, but whose item would expire before its debt is refilled.
    pub(super) extending_expiry: Option<ExtendingExpiry<W>>,
    pub(super) abandoned: Vec<AbandonedWrite>,
    /// Corrections and leases that ended after their callers left, in case they enter again, and
    /// the tokens that they leased. `None`: the item can no longer tell if the request took effect.
    pub(super) ended_without_caller: Vec<(RequestId, Option<Amounts>)>,
    /// Ids of lost writes. A write gets the id of one of its requests or a new one (`launch`), but
    /// none of these: see [`note_lost_id`](WriteQueue::note_lost_id).
    pub(super) unusable_ids: Vec<RequestId>,
    /// Outrun writes in a row.
    pub(super) outruns_in_a_row: u32,
    /// While `outruns_in_a_row` is not zero, a write carries at most this many requests that ask
    /// for tokens: half as many as the last outrun shared write, and at least one.
    pub(super) requests_max: usize,
    /// Pauses in a row.
    pub(super) pauses: u32,
    pub(super) must_pause: bool,
    pub(super) must_read: bool,
    pub(super) resolved: Vec<(W, Outcome)>,
    pub(super) counts: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Upkeep {
    /// Pulls back a refill time that is far ahead, or removes limits to make room for others.
    Repair,
    /// Brings an item to the limits of a request before the request is refused.
    Reconfigure,
    /// Moves the expiry of an item that would expire before its debt is refilled.
    Extend,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Flight {
    Read(Vec<usize>),
    SharedWrite,
    /// A write that takes nothing.
    Upkeep(Upkeep, Arc<Write>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SharedWrite<W> {
    pub(super) id: RequestId,
    pub(super) draft: Draft,
    pub(super) write: Arc<Write>,
    pub(super) members: Vec<Member<W>>,
    /// True if the answer to an attempt was lost.
    pub(super) is_in_doubt: bool,
    /// The ids in the known image of bucket 0 when the first attempt was sent. While the item still
    /// has one of these ids, it cannot have dropped the id of this write, so it shows whether the
    /// write happened (`may_have_forgotten`). If that image was outdated, its ids are older and
    /// dropped sooner. Then the queue takes the write for forgotten too early, and counts it as
    /// ambiguous though the item could still tell: that is safe.
    pub(super) ids_before: Vec<RequestId>,
    /// True if the buckets were read after the last attempt.
    pub(super) has_read_since_attempt: bool,
    /// For each bucket: true if none of the requests had a fresh image when the write was planned
    /// (`has_fresh_image`). The image may then miss other writers' changes.
    pub(super) may_be_outdated: [bool; BUCKETS_MAX],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ExtendingExpiry<W> {
    pub(super) done: Vec<(RequestId, W, Done)>,
    /// True if the item must be read first: the table did not return the image, and another
    /// writer's claim may have moved the expiry.
    pub(super) must_read_first: bool,
    pub(super) tries: u32,
}

impl<W> WriteQueue<W> {
    /// A queue of these buckets: one, or a child's and its parent's, which are written together.
    #[must_use]
    pub fn new(buckets: impl IntoIterator<Item = BucketId>, settings: QueueSettings) -> Self {
        Self {
            settings,
            buckets: buckets.into_iter().take(BUCKETS_MAX).map(QueueBucket::new).collect(),
            waiting: Vec::new(),
            flight: None,
            shared: None,
            extending_expiry: None,
            abandoned: Vec::new(),
            ended_without_caller: Vec::new(),
            unusable_ids: Vec::new(),
            outruns_in_a_row: 0,
            requests_max: usize::MAX,
            pauses: 0,
            must_pause: false,
            must_read: false,
            resolved: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The newest knowledge of a bucket.
    #[must_use]
    pub fn known(&self, bucket: usize) -> Option<&KnownImage> {
        self.buckets[bucket].known.as_ref()
    }

    /// The estimate of how often other processes claim in a bucket.
    pub fn contention(&mut self, bucket: usize) -> &mut ContentionEstimate {
        &mut self.buckets[bucket].contention
    }

    /// Replaces the known image of a bucket by one that another lane got, unless that one is the
    /// same or certainly older, or was adopted before.
    pub fn learn_unless_older(&mut self, bucket: usize, known: &KnownImage) {
        let is_idle = self.flight.is_none();
        let of = &mut self.buckets[bucket];
        let was_adopted = of.adopted.as_ref().is_some_and(|adopted| known.is_same(adopted));
        let is_newer = |old: &KnownImage| !known.is_same(old) && !known.is_older_than(old);
        if !was_adopted && of.known.as_ref().is_none_or(is_newer) {
            of.adopted = is_idle.then(|| known.clone());
            of.known = Some(known.clone());
            of.restart_quiet_time_if_claimed(known.as_of);
            self.members().for_each(|member| member.has_fresh_image[bucket] = false);
        }
    }

    /// The outcomes of requests since the last call, with the callers that wait for them.
    pub fn drain_resolved(&mut self) -> Vec<(W, Outcome)> {
        std::mem::take(&mut self.resolved)
    }

    /// The counts since the last call.
    pub fn drain_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// The callers of the requests that the call in flight concerns.
    pub fn callers_of_call(&mut self) -> impl Iterator<Item = &mut W> {
        let in_shared = matches!(self.flight, Some(Flight::SharedWrite));
        let shared = self.shared.as_mut().map(|shared| &mut shared.members).into_iter().flatten();
        let waiting = self.waiting.iter_mut().filter(move |_| !in_shared);
        shared.chain(waiting).filter_map(|member| member.waiter.as_mut())
    }

    /// True if no caller waits for anything.
    #[must_use]
    pub fn has_no_caller(&self) -> bool {
        let shared = self.shared.iter().flat_map(|shared| &shared.members);
        let is_extending =
            self.extending_expiry.as_ref().is_some_and(|extending| !extending.done.is_empty());
        !is_extending && self.waiting.iter().chain(shared).all(|member| member.waiter.is_none())
    }

    /// True if nothing is open: no request, no lost answer, nothing to give back.
    #[must_use]
    pub fn has_nothing_open(&self) -> bool {
        self.has_no_caller()
            && self.waiting.is_empty()
            && self.shared.is_none()
            && self.abandoned.is_empty()
    }

    /// True if the table was asked and has not answered.
    #[must_use]
    pub const fn has_call_in_flight(&self) -> bool {
        self.flight.is_some()
    }

    pub(super) fn members(&mut self) -> impl Iterator<Item = &mut Member<W>> {
        let shared = self.shared.as_mut().map(|shared| &mut shared.members);
        self.waiting.iter_mut().chain(shared.into_iter().flatten())
    }

    /// The buckets as a caller sees them: without unusable ids.
    pub(super) fn images(&self) -> Vec<Option<Arc<CompositeBucket>>> {
        let is_unusable = |id: &RequestId| self.unusable_ids.contains(id);
        let image = |bucket: &QueueBucket| {
            let image = bucket.known.as_ref()?.image.as_ref()?;
            if !image.request_ids.iter().any(is_unusable) {
                return Some(image.clone());
            }
            let mut shown = image.as_ref().clone();
            shown.request_ids.retain(|id| !is_unusable(id));
            Some(Arc::new(shown))
        };
        self.buckets.iter().map(image).collect()
    }

    /// True if none of the requests that wait, or that a write in doubt carries, asks for tokens.
    pub(super) fn only_corrects(&self) -> bool {
        let in_doubt = self.shared.iter().flat_map(|shared| &shared.members);
        !self.waiting.iter().chain(in_doubt).any(Member::may_be_refused)
    }

    pub(super) fn resolve(&mut self, member: Member<W>, outcome: Outcome) {
        if let Some(waiter) = member.waiter {
            self.resolved.push((waiter, outcome));
        }
    }
}
