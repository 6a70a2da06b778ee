//! A request that takes what this process holds, and never waits.

use std::sync::Arc;

use super::found::FOUND_MS;
use super::key_ref::KeyRef;
use super::leased::Leased;
use super::leased_bucket::{LeasedBucket, LeasedPart};
use super::remembered::{RememberedPart, RememberedRequest};
use super::request_buckets::Debit;
use crate::error::InvalidRequest;
use crate::limiter::Limiter;
use crate::permit::{LazyGrants, Permit, may_be_near_limit};
use crate::request::{AcquireRequest, count};

impl AcquireRequest<&Limiter> {
    /// Takes the tokens if this process holds them, without a call. `None`: it does not, and more
    /// is leased in the background. For the first request on a bucket, and for one after a pause,
    /// await the request instead. A time to wait is ignored.
    ///
    /// The limiter remembers the buckets of the request. For half a second it uses them for
    /// requests with the same entity, resource, limits and parent, unless this process changes a
    /// stored limit or a parent, or notices that a stored limit was changed.
    ///
    /// [`prepare`](Self::prepare) checks a request once that is made many times.
    ///
    /// # Errors
    /// [`InvalidRequest`], also for a limiter that does not lease.
    pub fn try_acquire(self) -> Result<Option<Permit>, InvalidRequest> {
        let Some(leased) = self.limiter.leased() else {
            self.into_request()?;
            return Err(InvalidRequest::NotLeasing);
        };
        let renew = |parts: &[LeasedPart]| parts.iter().for_each(|part| leased.lease_soon(part));
        match leased.take_remembered(&self) {
            Some(permit) => Ok(Some(permit)),
            None => leased.take_looked_up(self, renew),
        }
    }
}

impl Leased {
    /// As [`try_acquire`](AcquireRequest::try_acquire). `None` also for a request that is not
    /// valid. If too few tokens are held, it leases none: its caller does. For a bucket that is not
    /// held it looks nothing up.
    pub(crate) fn take_if_held(&self, request: &AcquireRequest<&Limiter>) -> Option<Permit> {
        if let Some(permit) = self.take_remembered(request) {
            return Some(permit);
        }
        let key = KeyRef { entity: request.entity(), resource: request.resource() };
        let is_held = |bucket: &Arc<LeasedBucket>| bucket.atomic.is_watched();
        self.leaser.buckets.with(&key, is_held).filter(|is_held| *is_held)?;
        self.take_looked_up(request.clone(), |_| ()).ok().flatten()
    }

    /// Takes held tokens from the remembered buckets of this entity and resource. `None`: none are
    /// remembered for a request like this one, or too few tokens are held.
    fn take_remembered(&self, request: &AcquireRequest<&Limiter>) -> Option<Permit> {
        let key = KeyRef { entity: request.entity(), resource: request.resource() };
        let remembered = self.remembered.get(&key)?;
        let now_ms = self.leaser.now_coarse_ms();
        let is_current = remembered.is_current(self.leaser.store.changes(), now_ms);
        if !is_current || remembered.terms != request.terms {
            return None;
        }
        let debits = remembered.debits(&request.amounts)?;
        let debit = |n: usize| Debit {
            bucket: &debits[n].bucket,
            demands: &debits[n].demands,
            configuration: &remembered.parts[n].grant.configuration,
        };
        if !self.take_each(debits.len(), debit, now_ms) {
            return None;
        }
        let limiter = request.limiter;
        let correction_deadline = limiter.guard().correction_deadline(request.deadline);
        let demands: Vec<_> = debits.into_iter().map(|debit| debit.demands).collect();
        if !remembered.may_be_near_limit {
            remembered.granted_counters.iter().for_each(|counter| counter.increment(1));
        }
        let near = remembered.may_be_near_limit.then(|| remembered.clone());
        let grants = LazyGrants::when_read(move || remembered.grants_with_held(&demands));
        let permit = Permit::uncorrected(limiter, correction_deadline, grants);
        if let Some(own) = near.as_ref().map(|remembered| &remembered.parts[0].grant) {
            count(limiter, &own.bucket.resource, own.amounts.keys(), Ok(&permit));
        }
        Some(permit)
    }

    /// Looks the buckets of a request up in memory and takes held tokens from them. Remembers them
    /// if there were enough.
    fn take_looked_up(
        &self,
        request: AcquireRequest<&Limiter>,
        short: impl FnOnce(&[LeasedPart]),
    ) -> Result<Option<Permit>, InvalidRequest> {
        let correction_deadline = request.limiter.guard().correction_deadline(request.deadline);
        let terms = request.terms.clone();
        let (limiter, request) = request.into_request()?;
        // Before the lookup: it need not see a change that comes during it.
        let changes = self.leaser.store.changes();
        let Some(parts) = self.known_parts(&request).filter(|parts| !parts.is_empty()) else {
            return Ok(None);
        };
        if !self.take_held(&parts, None) {
            short(&parts);
            return Ok(None);
        }
        for part in &parts {
            part.bucket.follow(&part.grant.configuration, &self.leaser.interner);
        }
        let grants: Vec<_> = parts.iter().map(|part| part.grant.clone()).collect();
        // By the store's balances: those with the held tokens change with every request.
        let may_be_near_limit = may_be_near_limit(&grants, limiter.options().near_share);
        let grants = self.with_held_tokens(grants);
        let permit = Permit::uncorrected(limiter, correction_deadline, grants.into());
        count(limiter, &request.resource, request.amounts.keys(), Ok(&permit));
        let counter = |limit| limiter.metrics().granted_counter(&request.resource, limit);
        let own = parts[0].grant.bucket.clone();
        let remembered = RememberedRequest {
            leaser: self.leaser.clone(),
            terms,
            parts: parts.into_iter().map(RememberedPart::from).collect(),
            changes,
            until_ms: self.leaser.now_coarse_ms().saturating_add(FOUND_MS),
            may_be_near_limit,
            granted_counters: request.amounts.keys().map(counter).collect(),
        };
        self.remembered.insert(own, Arc::new(remembered));
        Ok(Some(permit))
    }
}
