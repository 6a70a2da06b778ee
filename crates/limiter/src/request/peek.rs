//! Reads the state of a bucket and takes nothing.

use std::future::IntoFuture;

use futures_util::future::BoxFuture;
use sluicegate_core::Amounts;

use super::acquire::AcquireRequest;
use crate::error::{AcquireError, LimitStatus};
use crate::limit_set::IntoLimits;
use crate::limiter::Limiter;

/// A request for the state of a bucket.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Debug)]
pub struct PeekRequest<'a> {
    request: AcquireRequest<&'a Limiter>,
}

impl Limiter {
    /// The status of all limits of a bucket, and of its parent's if the entity cascades. Takes
    /// nothing. Each bucket is read by one strongly consistent read. Before that, stored limits and
    /// the entity's record are read if they are not remembered.
    pub fn peek(&self, entity: impl AsRef<str>, resource: impl AsRef<str>) -> PeekRequest<'_> {
        PeekRequest { request: self.acquire(entity, resource) }
    }
}

impl PeekRequest<'_> {
    /// Limits of the bucket, if the table does not know them.
    pub fn limits(self, limits: impl IntoLimits) -> Self {
        Self { request: self.request.limits(limits) }
    }

    /// Leaves out the limiter's default limits: a bucket is shown with the limits that it has, and
    /// the stored ones. No effect if the request names limits.
    pub fn without_default_limits(self) -> Self {
        Self { request: self.request.without_default_limits() }
    }

    /// Limits of the parent's bucket, if they differ from the entity's own.
    pub fn parent_limits(self, limits: impl IntoLimits) -> Self {
        Self { request: self.request.parent_limits(limits) }
    }

    /// Asks for the amounts of several limits: the status tells if each has enough.
    pub fn consume_all(self, amounts: &Amounts) -> Self {
        Self { request: self.request.consume_all(amounts) }
    }

    /// Reads this parent's bucket too.
    pub fn cascade_to(self, parent: impl AsRef<str>) -> Self {
        Self { request: self.request.cascade_to(parent) }
    }

    /// Reads no parent's bucket.
    pub fn no_cascade(self) -> Self {
        Self { request: self.request.no_cascade() }
    }
}

impl<'a> IntoFuture for PeekRequest<'a> {
    type Output = Result<Vec<LimitStatus>, AcquireError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.request.peek())
    }
}
