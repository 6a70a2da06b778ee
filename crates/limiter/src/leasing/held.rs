//! A request that takes what this process holds, and never waits.

use super::key_ref::KeyRef;
use super::leased::Leased;
use super::leased_part::LeasedPart;
use super::resolved::{DemandsOfParts, Resolved};
use crate::error::InvalidRequest;
use crate::limiter::Limiter;
use crate::permit::{Parts, Permit};
use crate::request::{AcquireRequest, count};
use crate::store::{BucketGrant, Grant};

impl AcquireRequest<&Limiter> {
    /// Takes the tokens if this process holds them, without a call. `None`: it does not, and more is
    /// leased in the background. For the first request on a bucket, and for one after a pause, await
    /// the request instead. A time to wait is ignored.
    ///
    /// The buckets of a request are looked up in memory, and their result serves half a second for
    /// requests with the same names. This process's own changes of stored limits and parents end it.
    ///
    /// [`prepare`](Self::prepare) checks a request once that is made many times.
    ///
    /// # Errors
    /// [`InvalidRequest`], also for a limiter that does not lease.
    pub fn try_acquire(self) -> Result<Option<Permit>, InvalidRequest> {
        let Some(leased) = self.limiter().leased() else {
            self.check_not_empty()?;
            return Err(InvalidRequest::NotLeasing);
        };
        if let Some(permit) = leased.take_as_resolved(&self) {
            return Ok(Some(permit));
        }
        let correction_time_max = self.limiter().guard().correction_time_max(self.own_deadline());
        let asked = (self.terms().clone(), leased.leaser.store.own_changes());
        let (limiter, request) = self.check_not_empty()?;
        let Some(parts) = leased.known_parts(&request).filter(|parts| !parts.is_empty()) else {
            return Ok(None);
        };
        if !leased.take_held(&parts, None) {
            for part in &parts {
                leased.leaser.renew_soon(&part.bucket, Some(&part.grant.configuration));
            }
            return Ok(None);
        }
        let grant = Grant::held(parts.iter().map(|part| part.grant.clone()));
        let permit = Permit::granted(limiter, correction_time_max, grant);
        let may_be_near_limit = permit.may_be_near_limit();
        let granted = Ok(permit);
        count(limiter, &request.resource, &request.amounts, &granted);
        let counter = |limit| limiter.metered().granted(&request.resource, limit);
        let counters = request.amounts.keys().map(counter).collect();
        let now_ms = leased.leaser.now_coarse_ms();
        leased.resolved.insert(Resolved::new(asked, parts, counters, may_be_near_limit, now_ms));
        Ok(granted.ok())
    }
}

impl Leased {
    /// Takes held tokens as the last request did that named the same entity, resource, limits and
    /// parent. `None`: there was none lately, or the tokens are not held.
    fn take_as_resolved(&self, request: &AcquireRequest<&Limiter>) -> Option<Permit> {
        let key = KeyRef { entity: request.entity(), resource: request.resource() };
        let resolved = self.resolved.get(&key)?;
        let now_ms = self.leaser.now_coarse_ms();
        let is_current = resolved.is_current(self.leaser.store.own_changes(), now_ms);
        if !is_current || resolved.terms != *request.terms() {
            return None;
        }
        let demands = resolved.demands(request.named_amounts())?;
        if !self.take_demands(&resolved.parts, &demands, now_ms) {
            return None;
        }
        let limiter = request.limiter();
        let correction_time_max = limiter.guard().correction_time_max(request.own_deadline());
        let parts = Parts::later({
            let resolved = resolved.clone();
            move || resolved.grants(&demands)
        });
        let permit = Permit::uncorrected(limiter, correction_time_max, parts);
        if !resolved.may_be_near_limit {
            resolved.granted.iter().for_each(|counter| counter.increment(1));
            return Some(permit);
        }
        let BucketGrant { bucket, amounts, .. } = &resolved.parts[0].grant;
        let granted = Ok(permit);
        count(limiter, &bucket.resource, amounts, &granted);
        granted.ok()
    }

    /// Takes these demands from every bucket, or from none.
    fn take_demands(&self, parts: &[LeasedPart], demands: &DemandsOfParts, now_ms: i64) -> bool {
        let leaser = &self.leaser;
        for (n, (part, demanded)) in parts.iter().zip(demands).enumerate() {
            let configuration = &part.grant.configuration;
            if !leaser.take(&part.bucket, demanded, Some(configuration), now_ms) {
                for (part, taken) in parts[..n].iter().zip(demands) {
                    leaser.put_back(&part.bucket, taken, &part.grant.configuration);
                }
                return false;
            }
        }
        true
    }
}
