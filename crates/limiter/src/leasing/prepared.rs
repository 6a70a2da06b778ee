//! A request that is checked once and made many times, each time by a few atomic operations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;

use super::found::{CHANGES_MAX, FOUND_MS, Found};
use super::key_ref::KeyRef;
use super::leased_bucket::{LeasedBucket, LeasedPart};
use super::leaser::Leaser;
use super::prepared_permit::{PreparedPermit, PreparedRequest, Source};
use crate::error::{AcquireError, InvalidRequest};
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::request::{AcquireRequest, in_acquire_span, wait_for};
use crate::store::{Cascade, Request};

/// A request to a limiter that [leases](crate::LimiterBuilder::leasing), checked once. As long as
/// the process holds tokens, it is decided without a call; for its own entity also without a lock
/// or an allocation, unless more must be leased. Every half second it is compared with the known
/// parent and stored limits, which are looked up once a minute in the background; `no_cascade`
/// saves that.
///
/// ```
/// # use sluicegate::{LeaseSettings, Limit, Limiter, MemoryStore};
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let limiter = Limiter::builder(store).leasing(LeaseSettings::default()).build();
/// let limits = [Limit::per_minute("rpm", 6_000)];
/// let call = limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(limits).no_cascade();
/// let call = call.prepare().await?;
/// let permit = call.acquire().await?;
/// permit.release(); // back into the process; dropping it keeps the tokens consumed
/// let permit = call.acquire_for("user-456").await?;
/// permit.into_permit().adjust("rpm", 2).await?;
/// # Ok(())
/// # }
/// ```
pub struct Prepared {
    of: PreparedRequest,
    /// The buckets found by `prepare`.
    first: Found,
    /// Held while a task looks up data that is no longer known, at most until its runtime ends.
    looking_up: Arc<tokio::sync::Mutex<()>>,
}

impl AcquireRequest<&Limiter> {
    /// Checks the request and looks up the data that it needs, so that it can be made many times.
    ///
    /// # Errors
    /// As for awaiting it; a limit that is short is no error here. `Unavailable`, under every
    /// setting, if limits or a parent have to be looked up and the store is unavailable.
    pub async fn prepare(self) -> Result<Prepared, AcquireError> {
        let (deadline, wait) = (self.deadline, self.limiter.wait_of(self.wait));
        let common_parent = self.common_parent().cloned();
        let (limiter, request) = self.into_request()?;
        let Some(leased) = limiter.leased().cloned() else {
            return Err(InvalidRequest::NotLeasing.into());
        };
        let parts = leased.parts_of(&request, request.deadline).await?.unwrap_or_default();
        let leaser = &leased.leaser;
        for part in &parts {
            part.bucket.follow(&part.grant.configuration, &leaser.interner);
        }
        let first = Found::new(parts, leaser.now_coarse_ms(), 0);
        let limiter = limiter.clone();
        let of = PreparedRequest { limiter, leased, request, common_parent, deadline, wait };
        Ok(Prepared { of, first, looking_up: Arc::default() })
    }
}

impl Prepared {
    /// Takes the tokens if this process holds them; never waits. Otherwise more is leased in the
    /// background, as long as there were requests lately. For the first request, and for one after
    /// a pause, await [`acquire`](Self::acquire).
    #[inline]
    pub fn try_acquire(&self) -> Option<PreparedPermit<'_>> {
        let now_ms = self.leaser().now_coarse_ms();
        let Some(found) = self.found(now_ms) else { return self.take_resolved(&self.of.request) };
        let permit = self.take_prepared(found, now_ms);
        if permit.is_none() {
            found.parts.iter().for_each(|part| self.of.leased.lease_soon(part));
        }
        permit
    }

    fn leaser(&self) -> &Arc<Leaser> {
        &self.of.leased.leaser
    }

    fn newest(&self) -> &Found {
        let mut found = &self.first;
        while let Some(next) = found.next.get() {
            found = next;
        }
        found
    }

    /// The newest known buckets. `None`: they changed too often, so resolve by name.
    #[inline]
    fn found(&self, now_ms: i64) -> Option<&Found> {
        let found = self.newest();
        let is_current = self.of.request.cascade == Cascade::No || found.is_used_for(0, now_ms);
        if is_current { Some(found) } else { self.find_again(found, now_ms) }
    }

    /// Compares the last result with the known data. Has unknown data looked up in the background;
    /// meanwhile the last result serves for another half second.
    #[cold]
    fn find_again<'a>(&'a self, found: &'a Found, now_ms: i64) -> Option<&'a Found> {
        let Some(parts) = self.of.leased.known_parts(&self.of.request) else {
            self.look_up_soon(&self.of.request);
            return Some(found).filter(|found| found.is_used_for(FOUND_MS, now_ms));
        };
        if found.is_same(&parts) {
            found.until_ms.store(now_ms.saturating_add(FOUND_MS), Ordering::Relaxed);
            return Some(found);
        }
        let changes = found.changes + 1;
        (changes < CHANGES_MAX)
            .then(|| &**found.next.get_or_init(|| Box::new(Found::new(parts, now_ms, changes))))
    }

    /// Looks up in the background the data that a request needs and that is not known.
    fn look_up_soon(&self, request: &Request) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.of.limiter.guard().is_breaker_open() {
            return;
        }
        let Ok(looking_up) = self.looking_up.clone().try_lock_owned() else { return };
        let (leased, request) = (self.of.leased.clone(), request.clone());
        runtime.spawn(async move {
            if let Err(error) = leased.parts_of(&request, request.deadline).await {
                tracing::debug!(%error, "the buckets of a prepared call were not looked up");
            }
            drop(looking_up);
        });
    }

    #[inline]
    fn take_prepared<'a>(&'a self, found: &'a Found, now_ms: i64) -> Option<PreparedPermit<'a>> {
        let is_taken = match found.parts.as_slice() {
            [LeasedPart { grant, bucket, demands }] => {
                self.leaser().take(bucket, demands, Some(&grant.configuration), now_ms)
            }
            [] => false,
            parts => self.of.leased.take_held(parts, None),
        };
        is_taken.then_some(PreparedPermit { of: &self.of, from: Source::Prepared(found) })
    }

    /// Takes on behalf of another entity, of which this process has seen a request before. A parent
    /// that the request names stays the same. With [`Cascade::Stored`] it is the entity's own
    /// parent: this allocates, and has an unknown parent looked up in the background.
    #[inline]
    pub fn try_acquire_for(&self, entity: &str) -> Option<PreparedPermit<'_>> {
        let serves = self.of.serves(entity);
        let found = if serves { self.found(self.leaser().now_coarse_ms()) } else { None };
        let Some(found) = found else {
            return self.take_resolved(&self.of.request_for(entity).ok()?);
        };
        let permit = self.take_prepared_for(found, entity);
        if permit.is_none()
            && let Some((_, others)) = found.parts.split_first()
        {
            let key = KeyRef { entity, resource: self.of.request.resource.as_str() };
            let renew = |bucket: &_| self.leaser().renew_soon(bucket, Some(&found.for_others));
            _ = self.leaser().buckets.with(&key, renew);
            others.iter().for_each(|part| self.of.leased.lease_soon(part));
        }
        permit
    }

    /// Takes held tokens from the buckets that the request is resolved to now.
    #[cold]
    fn take_resolved(&self, request: &Request) -> Option<PreparedPermit<'_>> {
        let Some(parts) = self.of.leased.known_parts(request) else {
            self.look_up_soon(request);
            return None;
        };
        if parts.is_empty() || !self.of.leased.take_held(&parts, None) {
            parts.iter().for_each(|part| self.of.leased.lease_soon(part));
            return None;
        }
        let permit = self.of.permit(parts.into_iter().map(|part| part.grant).collect());
        Some(PreparedPermit { of: &self.of, from: Source::Permit(Box::new(permit)) })
    }

    #[inline]
    fn take_prepared_for<'a>(
        &'a self,
        found: &'a Found,
        entity: &str,
    ) -> Option<PreparedPermit<'a>> {
        let (first, others) = found.parts.split_first()?;
        let leaser = self.leaser();
        let key = KeyRef { entity, resource: self.of.request.resource.as_str() };
        // The amounts are stored by slot, so both buckets need the same slots.
        let is_as_prepared = |bucket: &Arc<LeasedBucket>| bucket.layout == first.bucket.layout;
        let entity = if others.is_empty() {
            let take = |bucket: &Arc<LeasedBucket>| {
                let now_ms = leaser.now_coarse_ms();
                let limits = Some(&found.for_others);
                let is_taken =
                    is_as_prepared(bucket) && leaser.take(bucket, &first.demands, limits, now_ms);
                is_taken.then(|| bucket.entity.clone())
            };
            leaser.buckets.with(&key, take)?
        } else {
            let bucket = leaser.buckets.get(&key).filter(is_as_prepared)?;
            let first = Some((&bucket, &found.for_others));
            let is_taken = self.of.leased.take_held(&found.parts, first);
            is_taken.then(|| bucket.entity.clone())
        };
        entity.map(|entity| PreparedPermit { of: &self.of, from: Source::Other(entity, found) })
    }

    /// Takes all tokens of the request, or none; without a call if they are held.
    ///
    /// # Errors
    /// As for awaiting the request.
    #[inline]
    pub async fn acquire(&self) -> Result<PreparedPermit<'_>, AcquireError> {
        let now_ms = self.leaser().now_coarse_ms();
        match self.found(now_ms).and_then(|found| self.take_prepared(found, now_ms)) {
            Some(permit) => Ok(permit),
            None => self.acquire_from_store(self.of.request.clone()).await,
        }
    }

    /// Takes on behalf of another entity.
    ///
    /// # Errors
    /// As for awaiting the request.
    #[inline]
    pub async fn acquire_for(&self, entity: &str) -> Result<PreparedPermit<'_>, AcquireError> {
        if self.of.serves(entity)
            && let Some(found) = self.found(self.leaser().now_coarse_ms())
            && let Some(permit) = self.take_prepared_for(found, entity)
        {
            return Ok(permit);
        }
        self.acquire_from_store(self.of.request_for(entity)?).await
    }

    #[cold]
    async fn acquire_from_store(
        &self,
        mut request: Request,
    ) -> Result<PreparedPermit<'_>, AcquireError> {
        let PreparedRequest { limiter, leased, deadline, wait, .. } = &self.of;
        request.deadline = limiter.guard().call_deadline(*deadline);
        let acquired = || leased.take(&request, &self.newest().parts, limiter.clock()).boxed();
        let ask = || in_acquire_span(&request, limiter.guard().take_with(&request, acquired));
        let result = match *wait {
            Some(wait) => wait_for(limiter, &request, wait, &|| ask().boxed()).await,
            None => ask().await,
        };
        let permit = Permit::of(limiter, self.of.correction_deadline(), result)?;
        Ok(PreparedPermit { of: &self.of, from: Source::Permit(Box::new(permit)) })
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("request", &self.of.request).finish_non_exhaustive()
    }
}
