//! The outcome of an acquire, as metrics name it.

use crate::error::AcquireError;
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::store::Request;
use sluicegate_core::LimitName;

/// Counts the result of a checked request.
pub(crate) fn count(limiter: &Limiter, request: &Request, result: &Result<Permit, AcquireError>) {
    let near = result.as_ref().map(Permit::near_limits).unwrap_or_default();
    for limit in request.amounts.keys() {
        let (outcome, is_near) = (outcome(result, limit), near.contains(&limit));
        limiter.metered().acquired(&request.resource, limit, outcome, is_near);
    }
}

/// The outcome of a request for one of its limits.
fn outcome(result: &Result<Permit, AcquireError>, limit: &LimitName) -> &'static str {
    match result {
        Ok(permit) if permit.degraded().is_some() => "degraded",
        Ok(permit) if permit.shadowed().is_some() => "shadowed",
        Ok(_) => "granted",
        Err(AcquireError::LimitExceeded(exceeded)) => {
            let is_short = exceeded.violations().any(|violated| violated.limit == *limit);
            if is_short { "refused" } else { "not_taken" }
        }
        Err(AcquireError::NeverAdmissible(_)) => "never_admissible",
        Err(AcquireError::Contended { .. }) => "contended",
        Err(AcquireError::Unavailable(_)) => "unavailable",
        Err(AcquireError::InvalidRequest(_) | AcquireError::Setup(_)) => "failed",
    }
}
