//! A request that takes what this process holds, and never waits.

use crate::error::InvalidRequest;
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::request::{AcquireRequest, count};
use crate::store::Grant;

impl AcquireRequest<&Limiter> {
    /// Takes the tokens if this process holds them, without a call. `None`: it does not, and more is
    /// leased in the background. For the first request on a bucket, and for one after a pause, await
    /// the request instead. A time to wait is ignored.
    ///
    /// [`prepare`](Self::prepare) checks a request once that is made many times.
    ///
    /// # Errors
    /// [`InvalidRequest`], also for a limiter that does not lease.
    pub fn try_acquire(self) -> Result<Option<Permit>, InvalidRequest> {
        let correction_time_max = self.limiter().guard().correction_time_max(self.own_deadline());
        let (limiter, request) = self.check_not_empty()?;
        let Some(leased) = limiter.leased() else { return Err(InvalidRequest::NotLeasing) };
        let Some(parts) = leased.known_parts(&request).filter(|parts| !parts.is_empty()) else {
            return Ok(None);
        };
        if !leased.take_held(&parts, None) {
            for part in &parts {
                leased.leaser.renew_soon(&part.bucket, Some(&part.grant.configuration));
            }
            return Ok(None);
        }
        let grant = Grant::held(parts.into_iter().map(|part| part.grant));
        let granted = Ok(Permit::granted(limiter, correction_time_max, grant));
        count(limiter, &request, &granted);
        Ok(granted.ok())
    }
}
