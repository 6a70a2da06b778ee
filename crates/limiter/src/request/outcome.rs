//! The outcome of an acquire, as metrics name it.

use sluicegate_core::LimitName;

use crate::error::AcquireError;
use crate::limiter::Limiter;
use crate::metered::Outcome;
use crate::permit::Permit;
use crate::store::Request;

/// Counts the result of a checked request.
pub(crate) fn count(limiter: &Limiter, request: &Request, result: &Result<Permit, AcquireError>) {
    let near = result.as_ref().map(Permit::near_limits).unwrap_or_default();
    let outcomes =
        request.amounts.keys().map(|limit| (limit, outcome(result, limit), near.contains(&limit)));
    limiter.metered().acquired(&request.resource, outcomes);
}

/// The outcome of a request for one of its limits.
fn outcome(result: &Result<Permit, AcquireError>, limit: &LimitName) -> Outcome {
    match result {
        Ok(permit) if permit.degraded().is_some() => Outcome::Degraded,
        Ok(permit) if permit.shadowed().is_some() => Outcome::Shadowed,
        Ok(_) => Outcome::Granted,
        Err(AcquireError::LimitExceeded(exceeded)) => {
            let is_short = exceeded.violations().any(|violated| violated.limit == *limit);
            if is_short { Outcome::Refused } else { Outcome::NotTaken }
        }
        Err(AcquireError::NeverAdmissible(_)) => Outcome::NeverAdmissible,
        Err(AcquireError::Contended { .. }) => Outcome::Contended,
        Err(AcquireError::Unavailable(_)) => Outcome::Unavailable,
        Err(AcquireError::InvalidRequest(_) | AcquireError::Setup(_)) => Outcome::Failed,
    }
}
