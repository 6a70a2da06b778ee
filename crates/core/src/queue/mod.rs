//! One write at a time for each bucket: requests that arrive while one is in flight wait and share
//! the next.
//!
//! The queue performs no I/O. Its driver tells it which requests [enter](WriteQueue::enter) and
//! [leave](WriteQueue::leave), asks it for the [next](WriteQueue::next) action, carries that out and
//! tells it the [answer](WriteQueue::answered). The limiter drives it, and so do the simulation and
//! the model checker.
//!
//! * Requests are decided in order of arrival against the newest image. A request that does not fit
//!   lets a smaller one behind it pass, and is decided anew after the next answer.
//! * A request is refused only from an image that the table returned, never from what a write of this
//!   process is expected to leave.
//! * A lost answer leaves all requests of the write in doubt together. They are sent again under the
//!   same id until the table tells. A write of other requests requires that the lost one did not
//!   happen, and keeps it from happening later: it is a *fence*.
//! * A request whose caller leaves while it waits takes nothing. Where its write is in flight, the
//!   next write gives its share back. A correction and a lease stand.

mod answers;
mod bucket;
mod compose;
mod contention;
mod doubt;
mod draft;
mod leases;
mod member;
mod place;
mod request;

use std::sync::Arc;

use self::bucket::QueueBucket;
use self::doubt::Doubt;
use self::draft::Draft;
use self::member::Member;
use crate::{Amounts, BucketId, ClaimInterval, EpochMillis, RequestId, extend};

pub use self::bucket::Known;
pub use self::contention::ContentionEstimate;
pub use self::leases::LeaseTerms;
pub use self::request::{
    Action, Answer, BucketDemand, Done, Left, Outcome, Purpose, QueuedRequest, Write,
};

/// Writes that one request may be part of. Every attempt that fails saw another writer come first.
const ATTEMPTS_MAX: u32 = 40;
/// Writes in a row that other writers came before, until the first pause: a failed condition hands
/// over the item as it is this moment.
const LOSSES_AT_ONCE: u32 = 3;
/// The same where nobody waits for tokens.
const PATIENT_LOSSES_AT_ONCE: u32 = 1;
/// Attempts of a correction with guards; after that it is forced through.
const GUARDED_ATTEMPTS: u32 = 12;
/// Writes of a lease that nobody waits for: others may need the same tokens now.
const AHEAD_ATTEMPTS_MAX: u32 = 2;
/// Lost writes that one write keeps from happening later: an item remembers four ids.
const FENCES_MAX: usize = 2;
/// Ids of lost writes that are remembered, of which an item may remember four.
const FENCED_MAX: usize = 2 * RequestId::REMEMBERED;
/// Corrections and leases that are remembered after their callers left, in case they come again.
const SETTLED_MAX: usize = 64;
/// Attempts to move an expiry.
const EXTENSIONS_MAX: u32 = 5;

/// The trade-offs of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// How long a claim serves the writers behind it.
    pub interval: ClaimInterval,
    /// How old an image may be that a request is refused from, in milliseconds.
    pub deny_cache_ms: u64,
    /// True if each write is a transaction that is done once under its token.
    pub is_transactional: bool,
}

/// The counts of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Lost answers that no image could resolve.
    pub ambiguous: u32,
    /// Refill times that were pulled back because they were far ahead of this clock.
    pub clocks_ahead: u32,
    /// Corrections without guards.
    pub forced: u32,
    /// Expiries that could not be moved although a debt outlasts them.
    pub unextended: u32,
}

/// The requests of one process on one bucket, or on the buckets of a child and its parent.
///
/// `W` is what the driver knows a waiting caller by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WriteQueue<W> {
    policy: Policy,
    buckets: Vec<QueueBucket>,
    waiting: Vec<Member<W>>,
    /// The call that the table has not answered.
    flight: Option<Flight>,
    /// The write in flight, or one whose answer was lost.
    batch: Option<WriteBatch<W>>,
    /// Requests that are done but for the expiry of a debt.
    closing: Option<Closing<W>>,
    doubts: Vec<Doubt>,
    /// Corrections and leases that took effect after their callers left, and what they took; `None`: it
    /// cannot be told any more whether they did.
    settled: Vec<(RequestId, Option<Amounts>)>,
    /// Ids of lost writes that later ones may have kept from happening: an item that remembers one
    /// says nothing by it.
    fenced: Vec<RequestId>,
    /// Writes in a row that other writers came before.
    losses: u32,
    /// Requests that the next write takes for at most: half as many as the last one that lost.
    share: usize,
    /// Pauses in a row.
    pauses: u32,
    must_pause: bool,
    must_read: bool,
    resolved: Vec<(W, Outcome)>,
    counts: Counts,
}

/// Buckets of one queue at most: a child's and its parent's.
const BUCKETS_MAX: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Upkeep {
    /// Puts a clock right or makes room.
    Repair,
    /// Brings an item to the limits of a request that is refused.
    Bring,
    /// Moves an expiry.
    Extend,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Flight {
    Read(Vec<usize>),
    WriteBatch,
    /// A write that takes nothing.
    Upkeep(Upkeep, Arc<Write>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WriteBatch<W> {
    id: RequestId,
    attempts: u32,
    draft: Draft,
    write: Arc<Write>,
    members: Vec<Member<W>>,
    /// Ids that the first item remembered before an attempt whose answer was lost.
    doubt: Option<Vec<RequestId>>,
    /// True if the buckets were read after the last attempt.
    has_looked: bool,
    /// True if it gives tokens back: a repetition that takes effect twice would admit too much.
    gives_back: bool,
    is_forced: bool,
    /// Of which buckets the image was older than its requests.
    is_guess: [bool; BUCKETS_MAX],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Closing<W> {
    done: Vec<(RequestId, W, Done)>,
    /// A claim moves the expiry itself, so that an image which the table did not return may be wrong.
    must_look: bool,
    tries: u32,
}

impl<W> WriteQueue<W> {
    /// A queue of these buckets: one, or a child's and its parent's, which are written together.
    #[must_use]
    pub fn new(buckets: impl IntoIterator<Item = BucketId>, policy: Policy) -> Self {
        Self {
            policy,
            buckets: buckets.into_iter().take(BUCKETS_MAX).map(QueueBucket::new).collect(),
            waiting: Vec::new(),
            flight: None,
            batch: None,
            closing: None,
            doubts: Vec::new(),
            settled: Vec::new(),
            fenced: Vec::new(),
            losses: 0,
            share: usize::MAX,
            pauses: 0,
            must_pause: false,
            must_read: false,
            resolved: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The newest knowledge of a bucket.
    #[must_use]
    pub fn known(&self, bucket: usize) -> Option<&Known> {
        self.buckets[bucket].known.as_ref()
    }

    /// The estimate of how often other processes write a bucket.
    pub fn contention(&mut self, bucket: usize) -> &mut ContentionEstimate {
        &mut self.buckets[bucket].contention
    }

    /// Takes over what was learned elsewhere, unless it is older.
    pub fn learn(&mut self, bucket: usize, known: &Known) {
        let is_news = self.buckets[bucket]
            .known
            .as_ref()
            .is_none_or(|old| !known.is_same(old) && !known.is_older_than(old));
        if is_news {
            self.buckets[bucket].known = Some(known.clone());
            self.buckets[bucket].note_claims(known.as_of);
            self.members().for_each(|member| member.is_fresh[bucket] = false);
        }
    }

    /// Adds a request. It may be resolved at once.
    pub fn enter(&mut self, request: QueuedRequest, waiter: W, now: EpochMillis) {
        if self.is_idle() {
            // Its callers paused long enough by leaving.
            self.must_pause = false;
        }
        let id = &request.id;
        if let Some(at) = self.settled.iter().position(|(settled, _)| settled == id) {
            let (_, leased) = self.settled.remove(at);
            let images = self.images();
            let (dropped, is_forced, attempts) = (Vec::new(), false, 0);
            let done = |leased| Done { path: None, images, leased, dropped, is_forced, attempts };
            let outcome = leased.map_or(Outcome::Ambiguous, |leased| Outcome::Done(done(leased)));
            self.resolved.push((waiter, outcome));
            return;
        }
        let batch = self.batch.as_mut().map(|batch| &mut batch.members);
        let same = batch.into_iter().flatten().find(|member| member.request.id == *id);
        if let Some(member) = same {
            member.waiter = Some(waiter);
            return;
        }
        let member = Member::new(request, Some(waiter));
        match self.refused_at_once(&member, now) {
            Some(refused) => self.resolve(member, refused),
            None => self.waiting.push(member),
        }
    }

    /// Makes a correction that waits give up its guards: its time is nearly up.
    pub fn force(&mut self, id: &RequestId) {
        let mut members = self.waiting.iter_mut();
        if let Some(member) = members.find(|member| member.request.id == *id) {
            member.is_forced = true;
        }
    }

    /// Removes a request whose caller leaves, and gives back what the driver knows it by.
    pub fn leave(&mut self, id: &RequestId) -> (Left, Option<W>) {
        if let Some(closing) = &mut self.closing
            && let Some(at) = closing.done.iter().position(|(done, ..)| done == id)
        {
            let (_, waiter, done) = closing.done.swap_remove(at);
            return (Left::Done(done), Some(waiter));
        }
        let is_same = |member: &Member<W>| member.request.id == *id && member.waiter.is_some();
        let batch = self.batch.as_mut().map(|batch| &mut batch.members);
        if let Some(member) = batch.into_iter().flatten().find(|member| is_same(member)) {
            return (Left::InDoubt, member.waiter.take());
        }
        let is_in_doubt = self.doubts.iter().any(|doubt| doubt.has(id));
        let waiting = self.waiting.iter().position(is_same);
        let waiter = waiting.and_then(|at| self.waiting.remove(at).waiter);
        (if is_in_doubt { Left::InDoubt } else { Left::Nothing }, waiter)
    }

    /// The outcomes of requests since the last time, with those who wait for them.
    pub fn take_resolved(&mut self) -> Vec<(W, Outcome)> {
        std::mem::take(&mut self.resolved)
    }

    /// The counts since the last time.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Those who wait for what the table is asked now.
    pub fn waiters(&mut self) -> impl Iterator<Item = &mut W> {
        let in_batch = matches!(self.flight, Some(Flight::WriteBatch));
        let batch = self.batch.as_mut().map(|batch| &mut batch.members).into_iter().flatten();
        let waiting = self.waiting.iter_mut().filter(move |_| !in_batch);
        batch.chain(waiting).filter_map(|member| member.waiter.as_mut())
    }

    /// True if nobody waits for anything.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let batch = self.batch.iter().flat_map(|batch| &batch.members);
        let is_closing = self.closing.as_ref().is_some_and(|closing| !closing.done.is_empty());
        !is_closing && self.waiting.iter().chain(batch).all(|member| member.waiter.is_none())
    }

    /// True if nothing is open: no request, no lost answer, nothing to give back.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_idle() && self.waiting.is_empty() && self.batch.is_none() && self.doubts.is_empty()
    }

    /// True if the table was asked and has not answered.
    #[must_use]
    pub const fn is_asking(&self) -> bool {
        self.flight.is_some()
    }

    /// The next action. Not to be asked for while an answer is awaited.
    pub fn next(&mut self, now: EpochMillis, new_id: &mut dyn FnMut() -> RequestId) -> Action {
        debug_assert!(!self.is_asking(), "one request to the table at a time");
        if self.is_idle() {
            return Action::Idle;
        }
        if std::mem::take(&mut self.must_pause) {
            self.pauses += 1;
            // Others write meanwhile.
            self.members().for_each(|member| member.is_fresh = Default::default());
            let is_patient = self.losses > 0 && self.is_patient();
            return Action::Pause { in_a_row: self.pauses, is_patient };
        }
        if let Some(action) = self.close(now) {
            return action;
        }
        if let Some(action) = self.repeat(now) {
            return action;
        }
        self.compose(now, new_id)
    }

    /// Moves the expiry of a debt that outlasts it.
    fn close(&mut self, now: EpochMillis) -> Option<Action> {
        let closing = self.closing.as_mut()?;
        if std::mem::take(&mut closing.must_look) {
            return Some(self.read(vec![0]));
        }
        closing.tries += 1;
        match self.buckets[0].image().and_then(|image| extend(image, now)) {
            Some(plan) if closing.tries <= EXTENSIONS_MAX => {
                Some(self.maintain(Upkeep::Extend, 0, plan))
            }
            plan => {
                self.counts.unextended += u32::from(plan.is_some());
                self.closed();
                None
            }
        }
    }

    fn closed(&mut self) {
        let done = self.closing.take().map(|closing| closing.done).into_iter().flatten();
        self.resolved.extend(done.map(|(_, waiter, done)| (waiter, Outcome::Done(done))));
    }

    fn members(&mut self) -> impl Iterator<Item = &mut Member<W>> {
        let batch = self.batch.as_mut().map(|batch| &mut batch.members);
        self.waiting.iter_mut().chain(batch.into_iter().flatten())
    }

    /// The buckets as a caller is told of them: without ids that say nothing.
    fn images(&self) -> Vec<Option<Arc<crate::CompositeBucket>>> {
        let says_nothing = |id: &RequestId| self.fenced.contains(id);
        let image = |bucket: &QueueBucket| {
            let image = bucket.known.as_ref()?.image.as_ref()?;
            if !image.request_ids.iter().any(says_nothing) {
                return Some(image.clone());
            }
            let mut told = image.as_ref().clone();
            told.request_ids.retain(|id| !says_nothing(id));
            Some(Arc::new(told))
        };
        self.buckets.iter().map(image).collect()
    }

    fn is_patient(&self) -> bool {
        !self.waiting.iter().any(Member::takes)
    }

    fn resolve(&mut self, member: Member<W>, outcome: Outcome) {
        if let Some(waiter) = member.waiter {
            self.resolved.push((waiter, outcome));
        }
    }
}
