//! The limited part of an HTTP request.

/// The tokens that one HTTP request takes, and their entity: the builder of any other
/// [request](sluicegate::AcquireRequest), for the layer's limiter.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::Limit;
/// use sluicegate_tower::LimitRequest;
///
/// let limits = [Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 10_000)];
/// let wanted = LimitRequest::new("user-123", "gpt-4").consume("rpm", 1).consume("tpm", 500).limits(limits);
/// let wanted = wanted.cascade_to("team-7").wait_up_to(Duration::from_secs(2));
/// assert_eq!((wanted.entity(), wanted.resource()), ("user-123", "gpt-4"));
/// ```
pub type LimitRequest = sluicegate::AcquireRequest<()>;
