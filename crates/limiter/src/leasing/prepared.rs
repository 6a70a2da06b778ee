//! A request that is made over and over: put together once, then a few atomic operations each time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_core::EntityId;
use tokio::time::Instant;

use super::Leased;
use super::bucket::Bucket;
use super::engine::Spent;
use super::keys::KeyRef;
use super::store::Wants;
use crate::clock::Clock;
use crate::error::AcquireError;
use crate::lease::Lease;
use crate::lessor::Lessor;
use crate::limiter::Limiter;
use crate::request::AcquireRequest;
use crate::store::{Cascade, Grant, Part, Request};
use crate::unavailable::{Degraded, Granted};

/// A request to a [`LeasedLimiter`](crate::LeasedLimiter) that was checked once: as long as the
/// process holds tokens, it is decided without a call, a lock or an allocation.
///
/// ```
/// # use sluicegate::{CompositeStore, Limit, LeasedLimiter, MemoryTable};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let limiter = LeasedLimiter::leased(CompositeStore::on(MemoryTable::new()));
/// let limits = [Limit::per_minute("rpm", 6_000)];
/// let call = limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(limits).no_cascade();
/// let call = call.prepare().await?;
/// let ticket = call.acquire().await?;
/// ticket.release(); // back into the process; dropping it keeps the tokens consumed
/// let ticket = call.acquire_for("user-456").await?;
/// ticket.into_lease().adjust("rpm", 2).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Prepared<S, C> {
    limiter: Limiter<Leased<S, C>, C>,
    request: Request,
    /// The deadline that was said with the request.
    deadline: Option<Duration>,
    wants: Vec<Wants>,
}

/// Tokens that were taken. Dropping it keeps them consumed.
#[must_use = "dropping a ticket keeps the tokens consumed"]
pub struct Ticket<'a, S: Lessor, C: Clock> {
    prepared: &'a Prepared<S, C>,
    from: Source,
}

/// Which buckets a ticket is of.
enum Source {
    Prepared,
    /// Another entity's bucket, and whatever others are prepared.
    Other(EntityId),
    /// Whatever was found when it was not held.
    Asked(Box<Grant>),
    /// Nothing of the store, which is away.
    Degraded(Box<(Degraded, Vec<Part>)>),
}

impl<S: Lessor, C: Clock> AcquireRequest<&Limiter<Leased<S, C>, C>> {
    /// Checks the request and looks up what it needs to know, so that it can be made over and over.
    ///
    /// # Errors
    /// As for awaiting it; a limit that is short is no error here. `Unavailable`, under every
    /// setting, where limits or a parent have to be looked up and the store is away.
    pub async fn prepare(self) -> Result<Prepared<S, C>, AcquireError> {
        let deadline = self.said_deadline();
        let (limiter, request) = self.checked()?;
        let wants = limiter.store().wanted_by(&request).await?.unwrap_or_default();
        Ok(Prepared { limiter: limiter.clone(), request, deadline, wants })
    }
}

impl<S: Lessor, C: Clock> Prepared<S, C> {
    /// Takes what is asked, if this process holds it; nothing is waited for. If it does not, more is
    /// leased in the background, as long as there were requests lately: a first one, and one after a
    /// while, must be awaited ([`acquire`](Self::acquire)).
    #[inline]
    pub fn try_acquire(&self) -> Option<Ticket<'_, S, C>> {
        let ticket = self.held();
        if ticket.is_none() {
            self.wants.iter().for_each(|want| self.lease_soon(&want.bucket));
        }
        ticket
    }

    #[cold]
    fn lease_soon(&self, bucket: &Arc<Bucket>) {
        self.limiter.store().engine.renew_soon(bucket);
    }

    #[inline]
    fn held(&self) -> Option<Ticket<'_, S, C>> {
        let engine = &self.limiter.store().engine;
        let is_taken = match self.wants.as_slice() {
            [want] => engine.take(&want.bucket, &want.asks, engine.rough_ms()),
            [] => false,
            wants => self.limiter.store().take_held(wants, None),
        };
        is_taken.then_some(Ticket { prepared: self, from: Source::Prepared })
    }

    /// The same on behalf of another entity, of which this process has seen a request before. The
    /// parent, if there is one, is the same: with [`Cascade::Stored`], nothing is taken here.
    #[inline]
    pub fn try_acquire_for(&self, entity: &str) -> Option<Ticket<'_, S, C>> {
        let ticket = self.held_for(entity);
        if ticket.is_none() {
            let engine = &self.limiter.store().engine;
            let key = KeyRef { entity, resource: &self.request.resource };
            _ = engine.buckets.with(&key, |bucket| self.lease_soon(bucket));
            self.wants.iter().skip(1).for_each(|want| self.lease_soon(&want.bucket));
        }
        ticket
    }

    #[inline]
    fn held_for(&self, entity: &str) -> Option<Ticket<'_, S, C>> {
        let (first, others) = self.wants.split_first()?;
        if self.request.cascade == Cascade::Stored {
            return None;
        }
        let engine = &self.limiter.store().engine;
        let key = KeyRef { entity, resource: &self.request.resource };
        // The slots are those that the request was prepared for.
        let is_as_prepared = |bucket: &Arc<Bucket>| bucket.kind == first.bucket.kind;
        let entity = if others.is_empty() {
            let take = |bucket: &Arc<Bucket>| {
                let is_taken =
                    is_as_prepared(bucket) && engine.take(bucket, &first.asks, engine.rough_ms());
                is_taken.then(|| bucket.entity.clone())
            };
            engine.buckets.with(&key, take)?
        } else {
            let bucket = engine.buckets.get(&key).filter(is_as_prepared)?;
            let is_taken = self.limiter.store().take_held(&self.wants, Some(&bucket));
            is_taken.then(|| bucket.entity.clone())
        };
        entity.map(|entity| Ticket { prepared: self, from: Source::Other(entity) })
    }

    /// Takes what is asked, or nothing; without a call if it is held.
    ///
    /// # Errors
    /// As for awaiting the request.
    #[inline]
    pub async fn acquire(&self) -> Result<Ticket<'_, S, C>, AcquireError> {
        match self.held() {
            Some(ticket) => Ok(ticket),
            None => self.ask(self.request.clone()).await,
        }
    }

    /// The same on behalf of another entity.
    ///
    /// # Errors
    /// As for awaiting the request.
    #[inline]
    pub async fn acquire_for(&self, entity: &str) -> Result<Ticket<'_, S, C>, AcquireError> {
        if let Some(ticket) = self.held_for(entity) {
            return Ok(ticket);
        }
        let entity = EntityId::new(entity).map_err(crate::error::InvalidRequest::from)?;
        self.ask(Request { entity, ..self.request.clone() }).await
    }

    /// What is taken of another entity's own bucket.
    fn first_part(&self, entity: EntityId) -> Part {
        let mut part = self.wants[0].part.clone();
        part.bucket.entity = entity;
        part
    }

    /// What is wanted of the buckets that it was prepared for is wanted of those very ones, though
    /// nobody but this call may know them any more.
    fn with_own(&self, mut wants: Vec<Wants>) -> Vec<Wants> {
        for (want, own) in wants.iter_mut().zip(&self.wants) {
            let (found, own) = (&want.bucket, &own.bucket);
            let is_same = found.entity == own.entity && found.kind == own.kind;
            if is_same && !found.cell.is_watched() {
                want.bucket = own.clone();
            }
        }
        wants
    }

    async fn acquired(&self, request: &Request) -> Result<Grant, AcquireError> {
        let (store, clock) = (self.limiter.store(), self.limiter.clock());
        let until = Instant::now() + request.deadline;
        let wants = store.wanted_by(request).await?.map(|wants| self.with_own(wants));
        store.acquire_wanted(wants, request, until, clock).await
    }

    #[cold]
    async fn ask(&self, mut request: Request) -> Result<Ticket<'_, S, C>, AcquireError> {
        request.deadline = self.limiter.call_time(self.deadline);
        let from = match self.limiter.take_by(&request, || self.acquired(&request).boxed()).await? {
            Granted::Store(grant) => Source::Asked(Box::new(grant)),
            Granted::Degraded(degraded, parts) => Source::Degraded(Box::new((degraded, parts))),
        };
        Ok(Ticket { prepared: self, from })
    }
}

impl<S: Lessor, C: Clock> Ticket<'_, S, C> {
    /// Why it was granted without the store, where it was: see [`Lease::degraded`].
    #[must_use]
    pub fn degraded(&self) -> Option<&Degraded> {
        match &self.from {
            Source::Degraded(granted) => Some(&granted.0),
            _ => None,
        }
    }

    /// Gives the tokens back to the process, which gives them to others or back to the bucket. After
    /// a shutdown, or where as many keys are held as may be, they stay consumed:
    /// [`into_lease`](Self::into_lease) gives them back to the store.
    pub fn release(self) {
        let store = self.prepared.limiter.store();
        let prepared = &self.prepared.wants;
        match &self.from {
            Source::Prepared => prepared.iter().for_each(|want| store.give_back(want, None)),
            Source::Other(entity) => {
                self.give_back_of(entity);
                prepared.iter().skip(1).for_each(|want| store.give_back(want, None));
            }
            Source::Degraded(_) => {}
            Source::Asked(grant) => {
                grant.parts.iter().for_each(|part| store.give_back_part(part.clone()));
            }
        }
    }

    /// Gives back what was taken of another entity's own bucket.
    fn give_back_of(&self, entity: &EntityId) {
        let Prepared { limiter, request, wants, .. } = self.prepared;
        let (store, first) = (limiter.store(), &wants[0]);
        let key = KeyRef { entity: entity.as_str(), resource: &request.resource };
        match store.engine.buckets.get(&key) {
            Some(bucket) if bucket.kind == first.bucket.kind => {
                store.give_back(first, Some(&bucket));
            }
            _ => store.give_back_part(self.prepared.first_part(entity.clone())),
        }
    }

    /// The tokens as a lease, to be adjusted.
    #[must_use]
    pub fn into_lease(self) -> Lease<Leased<S, C>, C> {
        let Prepared { limiter, deadline, wants, .. } = self.prepared;
        let deadline = limiter.correction_time(*deadline);
        let grant = match self.from {
            Source::Prepared => {
                Spent::default().granted(wants.iter().map(|want| want.part.clone()))
            }
            Source::Other(entity) => {
                let others = wants.iter().skip(1).map(|want| want.part.clone());
                let parts = std::iter::once(self.prepared.first_part(entity)).chain(others);
                Spent::default().granted(parts)
            }
            Source::Asked(grant) => *grant,
            Source::Degraded(granted) => {
                let (degraded, parts) = *granted;
                return Lease::degraded_by(limiter, deadline, degraded, parts);
            }
        };
        Lease::granted(limiter, deadline, grant)
    }
}

impl<S, C> std::fmt::Debug for Prepared<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("request", &self.request).finish_non_exhaustive()
    }
}

impl<S: Lessor, C: Clock> std::fmt::Debug for Ticket<'_, S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("of", &self.prepared.request).finish_non_exhaustive()
    }
}
