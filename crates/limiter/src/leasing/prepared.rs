//! A request that is checked once and made many times, each time by a few atomic operations.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::EntityId;
use tokio::time::Instant;

use super::engine::Engine;
use super::keys::KeyRef;
use super::leased::Leased;
use super::leased_bucket::LeasedBucket;
use super::spent::Spent;
use super::store::Wants;
use crate::degraded::Degraded;
use crate::error::{AcquireError, InvalidRequest};
use crate::guard::Granted;
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::request::AcquireRequest;
use crate::store::{BucketGrant, Cascade, Grant, Request, Store as _};

/// A request to a limiter that [leases](crate::LimiterBuilder::leasing), checked once. As long as
/// the process holds tokens, it is decided without a call, a lock or an allocation. Every half
/// second it is compared with the known parent and stored limits, which are looked up once a minute
/// in the background; `no_cascade` saves that.
///
/// ```
/// # use sluicegate::{CompositeStore, LeaseSettings, Limit, Limiter, MemoryTable};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = CompositeStore::with_table(MemoryTable::new());
/// let limiter = Limiter::builder(store).leasing(LeaseSettings::default()).build();
/// let limits = [Limit::per_minute("rpm", 6_000)];
/// let call = limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(limits).no_cascade();
/// let call = call.prepare().await?;
/// let permit = call.acquire().await?;
/// permit.release(); // back into the process; dropping it keeps the tokens consumed
/// let permit = call.acquire_for("user-456").await?;
/// permit.into_permit().adjust("rpm", 2).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Prepared {
    limiter: Limiter,
    leased: Leased,
    request: Request,
    /// The deadline that the request set.
    deadline: Option<Duration>,
    /// The buckets found by `prepare`.
    first: Found,
    /// True while a task looks up data that is no longer known.
    is_looking_up: Arc<AtomicBool>,
}

/// The buckets that a prepared call takes from, with the amounts. An entity may get another parent,
/// and a parent may get limits that it did not have.
struct Found {
    wants: Vec<Wants>,
    /// The next comparison with the known data, epoch milliseconds.
    until_ms: AtomicI64,
    /// The buckets found later, if they differed.
    next: OnceLock<Box<Found>>,
    /// The number of times that they differed so far.
    changes: u32,
}

/// The time between comparisons with the known data, in milliseconds. While the data has to be
/// looked up in the store, the last result is used for as long again.
const FOUND_MS: i64 = 500;
/// Earlier results are kept for permits, so their number is bounded. After so many changes a call
/// is resolved each time, as other requests are.
const CHANGES_MAX: u32 = 64;

/// The tokens that a prepared call took. Dropping it keeps them consumed.
#[must_use = "dropping a ticket keeps the tokens consumed"]
pub struct PreparedPermit<'a> {
    prepared: &'a Prepared,
    from: Source<'a>,
}

/// The buckets that a permit took from.
enum Source<'a> {
    Prepared(&'a Found),
    /// Another entity's bucket, and the other prepared buckets.
    Other(EntityId, &'a Found),
    /// Buckets that were resolved for this one acquire.
    Asked(Box<Grant>),
    /// Granted without the store, which is unavailable.
    Degraded(Box<(Degraded, Vec<BucketGrant>)>),
}

/// Marks that a task looks up data that is no longer known, until this is dropped: at the latest
/// with its runtime.
struct LookingUp(Arc<AtomicBool>);

impl Drop for LookingUp {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl AcquireRequest<&Limiter> {
    /// Checks the request and looks up the data that it needs, so that it can be made many times.
    ///
    /// # Errors
    /// As for awaiting it; a limit that is short is no error here. `Unavailable`, under every
    /// setting, if limits or a parent have to be looked up and the store is unavailable.
    pub async fn prepare(self) -> Result<Prepared, AcquireError> {
        let deadline = self.said_deadline();
        let (limiter, request) = self.checked()?;
        let Some(leased) = limiter.leased().cloned() else {
            return Err(InvalidRequest::NotLeasing.into());
        };
        let wants = leased.wanted_by(&request).await?.unwrap_or_default();
        let engine = &leased.engine;
        for want in &wants {
            want.bucket.follow(&want.part.configuration, &engine.names);
        }
        let first = Found::new(wants, engine.rough_ms(), 0);
        let (limiter, is_looking_up) = (limiter.clone(), Arc::default());
        Ok(Prepared { limiter, leased, request, deadline, first, is_looking_up })
    }
}

impl Found {
    fn new(wants: Vec<Wants>, now_ms: i64, changes: u32) -> Self {
        let until_ms = AtomicI64::new(now_ms.saturating_add(FOUND_MS));
        Self { wants, until_ms, next: OnceLock::new(), changes }
    }

    /// True if the last comparison is recent enough. False if the clock was set back.
    fn is_used_for(&self, more_ms: i64, now_ms: i64) -> bool {
        let left_ms = self.until_ms.load(Ordering::Relaxed).saturating_sub(now_ms);
        (-more_ms..=FOUND_MS).contains(&left_ms)
    }

    /// True if the buckets and the amounts are the same.
    fn is_same(&self, wants: &[Wants]) -> bool {
        let is_same = |(one, other): (&Wants, &Wants)| {
            one.part.bucket == other.part.bucket
                && one.asks == other.asks
                && one.bucket.kind == other.bucket.kind
        };
        self.wants.len() == wants.len() && self.wants.iter().zip(wants).all(is_same)
    }

    /// The amounts taken of another entity's own bucket.
    fn first_part(&self, entity: EntityId) -> BucketGrant {
        let mut part = self.wants[0].part.clone();
        part.bucket.entity = entity;
        part
    }
}

impl Prepared {
    /// Takes the tokens if this process holds them; never waits. Otherwise more is leased in the
    /// background, as long as there were requests lately. The first request, and one after a pause,
    /// must be awaited ([`acquire`](Self::acquire)).
    #[inline]
    pub fn try_acquire(&self) -> Option<PreparedPermit<'_>> {
        let now_ms = self.engine().rough_ms();
        let Some(found) = self.found(now_ms) else { return self.held_by_name(&self.request) };
        let ticket = self.held(found, now_ms);
        if ticket.is_none() {
            found.wants.iter().for_each(|want| self.lease_soon(&want.bucket, want));
        }
        ticket
    }

    #[cold]
    fn lease_soon(&self, bucket: &Arc<LeasedBucket>, want: &Wants) {
        self.engine().renew_soon(bucket, want.limits());
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.leased.engine
    }

    fn newest(&self) -> &Found {
        let mut found = &self.first;
        while let Some(next) = found.next.get() {
            found = next;
        }
        found
    }

    /// The buckets to take from, as for other requests.
    #[inline]
    fn found(&self, now_ms: i64) -> Option<&Found> {
        let found = self.newest();
        let is_current = self.request.cascade == Cascade::No || found.is_used_for(0, now_ms);
        if is_current { Some(found) } else { self.find_again(found, now_ms) }
    }

    /// Compares the last result with the known data. Data that is no longer known is looked up in
    /// the background.
    #[cold]
    fn find_again<'a>(&'a self, found: &'a Found, now_ms: i64) -> Option<&'a Found> {
        let Some(wants) = self.leased.known_wants(&self.request) else {
            self.look_up_soon();
            return Some(found).filter(|found| found.is_used_for(FOUND_MS, now_ms));
        };
        if found.is_same(&wants) {
            found.until_ms.store(now_ms.saturating_add(FOUND_MS), Ordering::Relaxed);
            return Some(found);
        }
        let changes = found.changes + 1;
        (changes < CHANGES_MAX)
            .then(|| &**found.next.get_or_init(|| Box::new(Found::new(wants, now_ms, changes))))
    }

    /// Looks up in the background the data that is no longer known.
    fn look_up_soon(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.limiter.guard().is_open() || self.is_looking_up.swap(true, Ordering::AcqRel) {
            return;
        }
        let (leased, request) = (self.leased.clone(), self.request.clone());
        let looking_up = LookingUp(self.is_looking_up.clone());
        runtime.spawn(async move {
            let _looking_up = looking_up;
            if let Err(error) = leased.wanted_by(&request).await {
                tracing::debug!(%error, "the buckets of a prepared call were not looked up");
            }
        });
    }

    #[inline]
    fn held<'a>(&'a self, found: &'a Found, now_ms: i64) -> Option<PreparedPermit<'a>> {
        let is_taken = match found.wants.as_slice() {
            [want] => self.engine().take(&want.bucket, &want.asks, want.limits(), now_ms),
            [] => false,
            wants => self.leased.take_held(wants, None),
        };
        is_taken.then_some(PreparedPermit { prepared: self, from: Source::Prepared(found) })
    }

    /// Takes as a request that was not prepared does.
    #[cold]
    fn held_by_name(&self, request: &Request) -> Option<PreparedPermit<'_>> {
        let grant = self.leased.acquire_held(request)?;
        Some(PreparedPermit { prepared: self, from: Source::Asked(Box::new(grant)) })
    }

    /// Takes on behalf of another entity, of which this process has seen a request before. The
    /// parent, if there is one, is the same. With [`Cascade::Stored`], nothing is taken here.
    #[inline]
    pub fn try_acquire_for(&self, entity: &str) -> Option<PreparedPermit<'_>> {
        if self.request.cascade == Cascade::Stored || self.is_parent(entity) {
            return None;
        }
        let Some(found) = self.found(self.engine().rough_ms()) else {
            let entity = EntityId::new(entity).ok()?;
            return self.held_by_name(&Request { entity, ..self.request.clone() });
        };
        let ticket = self.held_for(found, entity);
        if ticket.is_none()
            && let Some((first, others)) = found.wants.split_first()
        {
            let key = KeyRef { entity, resource: &self.request.resource };
            _ = self.engine().buckets.with(&key, |bucket| self.lease_soon(bucket, first));
            others.iter().for_each(|want| self.lease_soon(&want.bucket, want));
        }
        ticket
    }

    #[inline]
    fn held_for<'a>(&'a self, found: &'a Found, entity: &str) -> Option<PreparedPermit<'a>> {
        let (first, others) = found.wants.split_first()?;
        let engine = self.engine();
        let key = KeyRef { entity, resource: &self.request.resource };
        // The slots are those that the request was prepared for.
        let is_as_prepared = |bucket: &Arc<LeasedBucket>| bucket.kind == first.bucket.kind;
        let entity = if others.is_empty() {
            let take = |bucket: &Arc<LeasedBucket>| {
                let now_ms = engine.rough_ms();
                let is_taken = is_as_prepared(bucket)
                    && engine.take(bucket, &first.asks, first.limits(), now_ms);
                is_taken.then(|| bucket.entity.clone())
            };
            engine.buckets.with(&key, take)?
        } else {
            let bucket = engine.buckets.get(&key).filter(is_as_prepared)?;
            let is_taken = self.leased.take_held(&found.wants, Some(&bucket));
            is_taken.then(|| bucket.entity.clone())
        };
        entity.map(|entity| PreparedPermit { prepared: self, from: Source::Other(entity, found) })
    }

    /// Takes all tokens of the request, or none; without a call if they are held.
    ///
    /// # Errors
    /// As for awaiting the request.
    #[inline]
    pub async fn acquire(&self) -> Result<PreparedPermit<'_>, AcquireError> {
        let now_ms = self.engine().rough_ms();
        match self.found(now_ms).and_then(|found| self.held(found, now_ms)) {
            Some(ticket) => Ok(ticket),
            None => self.ask(self.request.clone()).await,
        }
    }

    /// True if the entity is the parent, from whose bucket the request takes too.
    fn is_parent(&self, entity: &str) -> bool {
        matches!(&self.request.cascade, Cascade::To(parent) if parent.as_str() == entity)
    }

    /// Takes on behalf of another entity.
    ///
    /// # Errors
    /// As for awaiting the request.
    #[inline]
    pub async fn acquire_for(&self, entity: &str) -> Result<PreparedPermit<'_>, AcquireError> {
        if self.is_parent(entity) {
            let parent = EntityId::new(entity).map_err(InvalidRequest::from)?;
            return Err(InvalidRequest::OwnParent(parent).into());
        }
        if self.request.cascade != Cascade::Stored
            && let Some(found) = self.found(self.engine().rough_ms())
            && let Some(ticket) = self.held_for(found, entity)
        {
            return Ok(ticket);
        }
        let entity = EntityId::new(entity).map_err(InvalidRequest::from)?;
        self.ask(Request { entity, ..self.request.clone() }).await
    }

    /// Replaces found buckets by the prepared ones of the same name, which the table may have
    /// forgotten.
    fn with_own(&self, mut wants: Vec<Wants>) -> Vec<Wants> {
        for (want, own) in wants.iter_mut().zip(&self.newest().wants) {
            let (found, own) = (&want.bucket, &own.bucket);
            let is_same = found.entity == own.entity && found.kind == own.kind;
            if is_same && !found.cell.is_watched() {
                want.bucket = own.clone();
            }
        }
        wants
    }

    async fn acquired(&self, request: &Request) -> Result<Grant, AcquireError> {
        let (leased, clock) = (&self.leased, self.limiter.clock());
        let until = Instant::now() + request.deadline;
        let wants = leased.wanted_by(request).await?.map(|wants| self.with_own(wants));
        leased.acquire_wanted(wants, request, until, clock).await
    }

    #[cold]
    async fn ask(&self, mut request: Request) -> Result<PreparedPermit<'_>, AcquireError> {
        request.deadline = self.limiter.guard().call_time(self.deadline);
        let from =
            match self.limiter.guard().take_by(&request, || self.acquired(&request).boxed()).await?
            {
                Granted::Store(grant) => Source::Asked(Box::new(grant)),
                Granted::Degraded(degraded, parts) => Source::Degraded(Box::new((degraded, parts))),
            };
        Ok(PreparedPermit { prepared: self, from })
    }
}

impl PreparedPermit<'_> {
    /// The reason for a grant without the store, if it was one: see [`Permit::degraded`].
    #[must_use]
    pub fn degraded(&self) -> Option<&Degraded> {
        match &self.from {
            Source::Degraded(granted) => Some(&granted.0),
            _ => None,
        }
    }

    /// Gives the tokens back to the process, which gives them to other requests or back to the
    /// bucket. After a shutdown, or if as many keys are held as may be, they stay consumed:
    /// [`into_permit`](Self::into_permit) gives them back to the store.
    pub fn release(self) {
        let leased = &self.prepared.leased;
        match &self.from {
            Source::Prepared(found) => {
                found.wants.iter().for_each(|want| leased.give_back(want, None));
            }
            Source::Other(entity, found) => {
                self.give_back_of(entity, found);
                found.wants.iter().skip(1).for_each(|want| leased.give_back(want, None));
            }
            Source::Degraded(_) => {}
            Source::Asked(grant) => {
                grant.parts.iter().for_each(|part| leased.give_back_part(part.clone()));
            }
        }
    }

    /// Gives back the tokens of another entity's own bucket.
    fn give_back_of(&self, entity: &EntityId, found: &Found) {
        let Prepared { leased, request, .. } = self.prepared;
        let first = &found.wants[0];
        let key = KeyRef { entity: entity.as_str(), resource: &request.resource };
        match leased.engine.buckets.get(&key) {
            Some(bucket) if bucket.kind == first.bucket.kind => {
                leased.give_back(first, Some(&bucket));
            }
            _ => leased.give_back_part(found.first_part(entity.clone())),
        }
    }

    /// The tokens as a [`Permit`], to be adjusted.
    #[must_use]
    pub fn into_permit(self) -> Permit {
        let Prepared { limiter, deadline, .. } = self.prepared;
        let deadline = limiter.guard().correction_time(*deadline);
        let grant = match self.from {
            Source::Prepared(found) => {
                Spent::default().granted(found.wants.iter().map(|want| want.part.clone()))
            }
            Source::Other(entity, found) => {
                let others = found.wants.iter().skip(1).map(|want| want.part.clone());
                let parts = std::iter::once(found.first_part(entity)).chain(others);
                Spent::default().granted(parts)
            }
            Source::Asked(grant) => *grant,
            Source::Degraded(granted) => {
                let (degraded, parts) = *granted;
                return Permit::degraded_by(limiter, deadline, degraded, parts);
            }
        };
        Permit::granted(limiter, deadline, grant)
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("request", &self.request).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PreparedPermit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreparedPermit").field("of", &self.prepared.request).finish_non_exhaustive()
    }
}
