//! The permit of a request, in its extensions.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sluicegate::{
    AdjustError, Adjusted, Clock, Cost, Degraded, LimitExceeded, Permit, Remaining, Store,
};

/// The [`Permit`] of a request, in its extensions: for a handler that learns the real cost of the
/// work. Cheap to clone; clones share one permit. The type does not name the store, so that a
/// handler can be tested with another one.
///
/// When the last clone is dropped, the tokens stay taken. With two layers around a service, the
/// handler finds the permit of the inner one.
///
/// The handle may outlive the response: a body that is still being sent can hold a clone and adjust
/// it with every part. The fields of the response are those at the start of its body.
///
/// ```
/// use sluicegate::AdjustError;
/// use sluicegate_tower::PermitHandle;
///
/// async fn handler(request: http::Request<String>) -> Result<String, AdjustError> {
///     let answer = request.body().to_uppercase();
///     if let Some(permit) = request.extensions().get::<PermitHandle>() {
///         match answer.len() {
///             0 => permit.give_back().await?,
///             more => permit.adjust("tpm", i64::try_from(more).unwrap_or(i64::MAX)).await?,
///         };
///     }
///     Ok(answer)
/// }
/// # drop(handler(http::Request::default()));
/// ```
#[derive(Clone)]
pub struct PermitHandle {
    lease: Arc<dyn AnyPermit>,
}

/// A permit of any store.
trait AnyPermit: std::fmt::Debug + Send + Sync {
    fn adjust<'a>(&'a self, limit: &'a str, by: i64) -> Adjusting<'a>;
    fn adjust_milli<'a>(&'a self, limit: &'a str, by_milli: i64) -> Adjusting<'a>;
    fn give_back(&self) -> Adjusting<'_>;
    fn remaining(&self) -> Vec<Remaining>;
    fn is_near_limit(&self) -> bool;
    fn shadowed(&self) -> Option<&LimitExceeded>;
    fn degraded(&self) -> Option<&Degraded>;
    fn cost(&self) -> Cost;
}

type Adjusting<'a> = BoxFuture<'a, Result<Adjusted, AdjustError>>;

impl PermitHandle {
    pub(crate) fn new<S: Store, C: Clock>(lease: Permit<S, C>) -> Self {
        Self { lease: Arc::new(lease) }
    }

    /// Adds `by` tokens to the consumption: see [`Permit::adjust`].
    ///
    /// # Errors
    /// [`AdjustError`].
    pub async fn adjust(&self, limit: impl AsRef<str>, by: i64) -> Result<Adjusted, AdjustError> {
        self.lease.adjust(limit.as_ref(), by).await
    }

    /// As [`adjust`](Self::adjust), in thousandths of a token.
    ///
    /// # Errors
    /// [`AdjustError`].
    pub async fn adjust_milli(
        &self,
        limit: impl AsRef<str>,
        by_milli: i64,
    ) -> Result<Adjusted, AdjustError> {
        self.lease.adjust_milli(limit.as_ref(), by_milli).await
    }

    /// Gives back everything that was taken, once: see [`Permit::give_back`].
    ///
    /// # Errors
    /// [`AdjustError`].
    pub async fn give_back(&self) -> Result<Adjusted, AdjustError> {
        self.lease.give_back().await
    }

    /// The balances of the request's limits: see [`Permit::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Vec<Remaining> {
        self.lease.remaining()
    }

    /// True if a limit of the request is nearly used up.
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        self.lease.is_near_limit()
    }

    /// In shadow mode: the refusal that the request would have got.
    #[must_use]
    pub fn shadowed(&self) -> Option<&LimitExceeded> {
        self.lease.shadowed()
    }

    /// The reason for a grant without the store, if it was one: see [`Permit::degraded`].
    #[must_use]
    pub fn degraded(&self) -> Option<&Degraded> {
        self.lease.degraded()
    }

    /// The cost of the acquire.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.lease.cost()
    }
}

impl std::fmt::Debug for PermitHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lease.fmt(f)
    }
}

impl<S: Store, C: Clock> AnyPermit for Permit<S, C> {
    fn adjust<'a>(&'a self, limit: &'a str, by: i64) -> Adjusting<'a> {
        Box::pin(self.adjust(limit, by))
    }

    fn adjust_milli<'a>(&'a self, limit: &'a str, by_milli: i64) -> Adjusting<'a> {
        Box::pin(self.adjust_milli(limit, by_milli))
    }

    fn give_back(&self) -> Adjusting<'_> {
        Box::pin(self.give_back())
    }

    fn remaining(&self) -> Vec<Remaining> {
        self.remaining()
    }

    fn is_near_limit(&self) -> bool {
        self.is_near_limit()
    }

    fn shadowed(&self) -> Option<&LimitExceeded> {
        self.shadowed()
    }

    fn degraded(&self) -> Option<&Degraded> {
        self.degraded()
    }

    fn cost(&self) -> Cost {
        self.cost()
    }
}
