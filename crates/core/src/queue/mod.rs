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
//! * A lost answer leaves all requests of the write in doubt together. The very same write is sent
//!   again until the table tells. A different write first requires that the lost one did not happen,
//!   and keeps it from happening later: it is a *fence*.
//! * A request whose caller leaves while it waits takes nothing. Where its write is in flight, the
//!   next write gives its share back.

mod answers;
mod bucket;
mod contention;
mod doubt;
mod draft;
mod leases;
mod place;
mod request;

use std::sync::Arc;

use self::bucket::QueueBucket;
use self::doubt::Doubt;
use self::draft::{Demand, Draft, Ids};
use self::place::Placed;
use crate::adjust::extend;
use crate::take::NOTHING;
use crate::{
    Amounts, BucketId, ClaimInterval, EpochMillis, Millitokens, Presume, RequestId, WritePath,
    WritePlan,
};

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

/// What a queue trades for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// How long a claim serves the writers behind it.
    pub interval: ClaimInterval,
    /// How old an image may be that a request is refused from, in milliseconds.
    pub deny_cache_ms: u64,
    /// Whether each write is a transaction that is done once under its token.
    pub is_transactional: bool,
}

/// What a queue counted.
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
    /// What the table was asked and has not answered.
    flight: Option<Flight>,
    /// The write in flight, or one whose answer was lost.
    batch: Option<Batch<W>>,
    /// What is done but for the expiry of a debt.
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
    /// Pauses in a row.
    pauses: u32,
    must_pause: bool,
    must_read: bool,
    resolved: Vec<(W, Outcome)>,
    counts: Counts,
}

/// A request of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Member<W> {
    request: QueuedRequest,
    /// `None`: its caller left, or it never had one.
    waiter: Option<W>,
    /// Of which buckets the table told since it entered.
    is_fresh: [bool; BUCKETS_MAX],
    /// It was there when the table was asked last.
    was_present: bool,
    /// Another writer came before its last write.
    has_lost: bool,
    /// When those before it first took what it needed.
    skipped_at: Option<EpochMillis>,
    attempts: u32,
    /// Whether an item may be brought to its limits before it is refused: once each.
    may_bring: [bool; BUCKETS_MAX],
    /// Whether it gives up its guards.
    is_forced: bool,
    /// What a lease takes by the write that carries it.
    leased: Amounts,
    /// What of it concerns limits that the bucket does not have.
    dropped: Vec<crate::LimitName>,
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
    Batch,
    /// A write that takes nothing.
    Upkeep(Upkeep, Arc<Write>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Batch<W> {
    id: RequestId,
    attempts: u32,
    draft: Draft,
    write: Arc<Write>,
    members: Vec<Member<W>>,
    /// Ids that the first item remembered before an attempt whose answer was lost.
    doubt: Option<Vec<RequestId>>,
    /// Whether the buckets were read after the last attempt.
    has_looked: bool,
    /// Whether it gives tokens back: a repetition that takes effect twice would admit too much.
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
            pauses: 0,
            must_pause: false,
            must_read: false,
            resolved: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// What is known of a bucket.
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

    /// What became of requests since the last time, with those who wait for it.
    pub fn take_resolved(&mut self) -> Vec<(W, Outcome)> {
        std::mem::take(&mut self.resolved)
    }

    /// What was counted since the last time.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Those who wait for what the table is asked now.
    pub fn waiters(&mut self) -> impl Iterator<Item = &mut W> {
        let in_batch = matches!(self.flight, Some(Flight::Batch));
        let batch = self.batch.as_mut().map(|batch| &mut batch.members).into_iter().flatten();
        let waiting = self.waiting.iter_mut().filter(move |_| !in_batch);
        batch.chain(waiting).filter_map(|member| member.waiter.as_mut())
    }

    /// Whether nobody waits for anything.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let batch = self.batch.iter().flat_map(|batch| &batch.members);
        let is_closing = self.closing.as_ref().is_some_and(|closing| !closing.done.is_empty());
        !is_closing && self.waiting.iter().chain(batch).all(|member| member.waiter.is_none())
    }

    /// Whether nothing is open: no request, no lost answer, nothing to give back.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_idle() && self.waiting.is_empty() && self.batch.is_none() && self.doubts.is_empty()
    }

    /// Whether the table was asked and has not answered.
    #[must_use]
    pub const fn is_asking(&self) -> bool {
        self.flight.is_some()
    }

    /// What to do next. Not to be asked while an answer is awaited.
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

    /// Sends a write again whose answer was lost.
    fn repeat(&mut self, now: EpochMillis) -> Option<Action> {
        let batch = self.batch.as_mut()?;
        if batch.members.iter().all(|member| member.waiter.is_none()) {
            // Nobody wants it any more; that it may have happened is not forgotten.
            self.give_up_batch();
            return None;
        }
        if batch.gives_back && !batch.has_looked {
            return Some(self.read_all());
        }
        let batch = self.batch.as_ref()?;
        // What a plan assumes of the time holds for as long as a write takes. A transaction is repeated
        // as it is: its token tells that it is the same.
        if batch.draft.is_mixed() && !self.follow(&batch.draft) {
            self.give_up_batch();
            return None;
        }
        if self.buckets.len() == 1
            && !self.policy.is_transactional
            && let Some(mut batch) = self.batch.take()
        {
            batch.is_guess = self.is_guess(&batch.members);
            let plans = self.plans(&batch.draft, &batch.id, batch.is_guess, now);
            batch.attempts += 1;
            let token = Some((batch.id.clone(), batch.attempts));
            batch.write = Arc::new(Write { plans, token });
            self.batch = Some(batch);
        }
        Some(self.send())
    }

    fn compose(&mut self, now: EpochMillis, new_id: &mut dyn FnMut() -> RequestId) -> Action {
        let is_unknown = |bucket: &usize| self.buckets[*bucket].known.is_none();
        let unknown: Vec<_> = (0..self.buckets.len()).filter(is_unknown).collect();
        if !unknown.is_empty() {
            return self.read(unknown);
        }
        if std::mem::take(&mut self.must_read) || self.is_outdated(now) {
            return self.read_all();
        }
        let demands = self.buckets.iter().map(|_| Demand::default()).collect();
        let mut draft = Draft { demands, ..Draft::default() };
        let mut members = Vec::new();
        let (mut wants_read, mut upkeep) = (false, None);
        for mut member in std::mem::take(&mut self.waiting) {
            match self.place(&mut draft, &mut member, now) {
                Placed::In => {
                    members.push(member);
                    continue;
                }
                Placed::Out(outcome) => {
                    self.resolve(member, outcome);
                    continue;
                }
                Placed::Later => {}
                Placed::Skipped => _ = member.skipped_at.get_or_insert(now),
                Placed::Read => wants_read = true,
                Placed::Upkeep(kind, bucket, plan) if members.is_empty() && upkeep.is_none() => {
                    if kind == Upkeep::Bring {
                        member.may_bring[bucket] = false;
                        let configuration = &member.request.buckets[bucket].configuration;
                        self.buckets[bucket].note_bringing(configuration);
                    }
                    upkeep = Some((kind, bucket, plan));
                }
                Placed::Upkeep(..) => {}
            }
            self.waiting.push(member);
        }
        // What is given back waits for another request, unless that waits for it.
        let has_company = members.iter().any(|member| member.waiter.is_some());
        let is_waited_for = upkeep.is_none() && !wants_read && !self.is_idle();
        if has_company || is_waited_for && !members.is_empty() {
            return self.launch(draft, members, now, new_id);
        }
        members.append(&mut self.waiting);
        self.waiting = members;
        match upkeep {
            Some((kind, bucket, plan)) => self.maintain(kind, bucket, plan),
            None if wants_read => self.read_all(),
            None => Action::Idle,
        }
    }

    /// Whether others usually changed the item meanwhile: a read costs less than a write that fails.
    fn is_outdated(&self, now: EpochMillis) -> bool {
        let takes = |member: &Member<W>| member.request.purpose == Purpose::Acquire;
        let is_outdated = |(index, bucket): (usize, &QueueBucket)| {
            let is_fresh = self.waiting.iter().any(|member| member.is_fresh[index]);
            let contention = bucket.contention;
            bucket.is_stale(self.policy, now)
                && bucket.is_old(self.policy, now)
                && contention.is_moving()
                && !contention.is_claimed()
                && !is_fresh
        };
        self.waiting.iter().any(takes) && self.buckets.iter().enumerate().any(is_outdated)
    }

    fn launch(
        &mut self,
        draft: Draft,
        members: Vec<Member<W>>,
        now: EpochMillis,
        new_id: &mut dyn FnMut() -> RequestId,
    ) -> Action {
        // One that enters again after its caller gave up is then recognised in the item itself.
        let may_name = |member: &&Member<W>| {
            member.request.purpose != Purpose::GiveBack && !self.fenced.contains(&member.request.id)
        };
        let naming = members.iter().filter(may_name);
        let id = naming.min_by_key(|member| member.request.purpose == Purpose::Acquire);
        let id = id.map_or_else(new_id, |member| member.request.id.clone());
        let is_guess = self.is_guess(&members);
        let plans = self.plans(&draft, &id, is_guess, now);
        let attempts = members.iter().map(|member| member.attempts).max().unwrap_or(0);
        self.batch = Some(Batch {
            gives_back: draft.demands.iter().any(Demand::gives_back),
            is_forced: draft.is_forced,
            draft,
            write: Arc::new(Write { plans, token: Some((id.clone(), attempts)) }),
            id,
            attempts,
            members,
            doubt: None,
            has_looked: false,
            is_guess,
        });
        self.send()
    }

    /// Of which buckets the image is older than these requests.
    fn is_guess(&self, members: &[Member<W>]) -> [bool; BUCKETS_MAX] {
        std::array::from_fn(|index| !members.iter().any(|member| member.is_fresh[index]))
    }

    fn plans(
        &self,
        draft: &Draft,
        id: &RequestId,
        is_guess: [bool; BUCKETS_MAX],
        now: EpochMillis,
    ) -> Vec<(usize, WritePlan)> {
        let fences: Vec<_> = self.doubts.iter().map(|doubt| doubt.id.clone()).collect();
        let ids = Ids { id, fences: &fences };
        let plan = |(index, (bucket, demand)): (usize, (&QueueBucket, &Demand))| {
            let is_claimed = is_guess[index]
                && bucket.contention.is_claimed()
                && (bucket.is_stale(self.policy, now) || !draft.acquires);
            let presume = if is_claimed { Presume::ClaimedSince } else { Presume::Unchanged };
            (index, demand.plan(bucket, draft, &ids, (self.policy, presume), now))
        };
        self.buckets.iter().zip(&draft.demands).enumerate().map(plan).collect()
    }

    fn send(&mut self) -> Action {
        self.flight = Some(Flight::Batch);
        self.mark_present();
        let Some(batch) = &mut self.batch else { return Action::Idle };
        for member in &mut batch.members {
            member.attempts += 1;
            member.has_lost = false;
        }
        batch.has_looked = false;
        Action::Write(batch.write.clone())
    }

    fn maintain(&mut self, upkeep: Upkeep, bucket: usize, plan: WritePlan) -> Action {
        self.mark_present();
        let write = Arc::new(Write { plans: vec![(bucket, plan)], token: None });
        self.flight = Some(Flight::Upkeep(upkeep, write.clone()));
        Action::Write(write)
    }

    fn read_all(&mut self) -> Action {
        self.read((0..self.buckets.len()).collect())
    }

    fn read(&mut self, buckets: Vec<usize>) -> Action {
        self.mark_present();
        self.flight = Some(Flight::Read(buckets.clone()));
        Action::Read(buckets)
    }

    fn mark_present(&mut self) {
        self.members().for_each(|member| member.was_present = true);
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

impl<W> Member<W> {
    const fn new(request: QueuedRequest, waiter: Option<W>) -> Self {
        Self {
            request,
            waiter,
            is_fresh: [false; BUCKETS_MAX],
            was_present: false,
            has_lost: false,
            skipped_at: None,
            attempts: 0,
            may_bring: [true; BUCKETS_MAX],
            is_forced: false,
            leased: Amounts::new(),
            dropped: Vec::new(),
        }
    }

    /// Whether it asks for anything still.
    fn is_wanted(&self) -> bool {
        self.waiter.is_some() || self.request.purpose == Purpose::GiveBack
    }

    /// Whether it takes tokens, and may be refused.
    fn takes(&self) -> bool {
        matches!(self.request.purpose, Purpose::Acquire | Purpose::Lease(_))
    }

    /// What comes back before it takes.
    fn returned(&self) -> &Amounts {
        match &self.request.purpose {
            Purpose::Lease(terms) => &terms.returned,
            _ => &NOTHING,
        }
    }

    /// Writes that may carry it.
    fn attempts_max(&self) -> u32 {
        match &self.request.purpose {
            Purpose::Lease(terms) if terms.is_ahead_of_need() => AHEAD_ATTEMPTS_MAX,
            _ => ATTEMPTS_MAX,
        }
    }

    fn gives_back(&self) -> bool {
        let mut amounts = self.request.buckets.iter().flat_map(|demand| demand.amounts.values());
        amounts.any(|amount| *amount < Millitokens::ZERO) || !self.returned().is_empty()
    }

    fn is_debit(&self) -> bool {
        let mut amounts = self.request.buckets.iter().flat_map(|demand| demand.amounts.values());
        self.request.purpose == Purpose::Correct
            && amounts.any(|amount| *amount > Millitokens::ZERO)
    }

    fn done(&self, path: Option<WritePath>, queue: &WriteQueue<W>, is_forced: bool) -> Done {
        Done {
            path,
            images: queue.images(),
            leased: self.leased.clone(),
            dropped: self.dropped.clone(),
            is_forced: is_forced && self.is_debit(),
            attempts: self.attempts,
        }
    }
}
