//! The outcome of an acquire, as metrics name it.

use sluicegate_core::{LimitName, Resource};

use crate::error::AcquireError;
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::program_metrics::OutcomeLabel;

/// Counts the result of a checked request for these limits.
pub(crate) fn count<'a>(
    limiter: &Limiter,
    resource: &Resource,
    limits: impl Iterator<Item = &'a LimitName>,
    result: Result<&Permit, &AcquireError>,
) {
    let near = result.map(Permit::near_limits).unwrap_or_default();
    let outcomes = limits.map(|limit| (limit, outcome(result, limit), near.contains(&limit)));
    limiter.metrics().acquired(resource, outcomes);
}

/// The outcome of a request for one of its limits.
fn outcome(result: Result<&Permit, &AcquireError>, limit: &LimitName) -> OutcomeLabel {
    match result {
        Ok(permit) if permit.degraded().is_some() => OutcomeLabel::Degraded,
        Ok(permit) if permit.shadowed().is_some() => OutcomeLabel::Shadowed,
        Ok(_) => OutcomeLabel::Granted,
        Err(AcquireError::LimitExceeded(exceeded)) => {
            let is_short = exceeded.violations().any(|violated| violated.limit == *limit);
            if is_short { OutcomeLabel::Refused } else { OutcomeLabel::NotTaken }
        }
        Err(AcquireError::NeverAdmissible(_)) => OutcomeLabel::NeverAdmissible,
        Err(AcquireError::Contended { .. }) => OutcomeLabel::Contended,
        Err(AcquireError::Unavailable(_)) => OutcomeLabel::Unavailable,
        Err(AcquireError::InvalidRequest(_) | AcquireError::Setup(_)) => OutcomeLabel::Failed,
    }
}
