//! What a request brings: what it wants, and then what it got.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::clock::Clock;
use crate::error::{AcquireError, AdjustError, LimitExceeded};
use crate::lease::{Cost, Lease, Remaining};
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::store::{Adjusted, Store};

/// What one HTTP request takes of whose limits. Names and amounts are checked when it is asked for.
///
/// ```
/// use sluicegate::Limit;
/// use sluicegate::tower::Wanted;
///
/// let limits = [Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 10_000)];
/// let wanted = Wanted::new("user-123", "gpt-4").consume("rpm", 1).consume("tpm", 500).limits(limits);
/// assert_eq!(wanted.amounts, [("rpm".to_owned(), 1), ("tpm".to_owned(), 500)]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Who asks.
    pub entity: String,
    /// For what.
    pub resource: String,
    /// Tokens of each limit, as for [`AcquireRequest::consume`](crate::AcquireRequest::consume).
    pub amounts: Vec<(String, i64)>,
    /// Limits that need not be stored, as for
    /// [`AcquireRequest::limits`](crate::AcquireRequest::limits).
    pub limits: Vec<Limit>,
    /// A parent to take from too; `None`: as the limiter's [`cascade`](Limiter::cascade) says.
    pub parent: Option<String>,
}

impl Wanted {
    /// Nothing yet, for `entity` of `resource`.
    #[must_use]
    pub fn new(entity: impl Into<String>, resource: impl Into<String>) -> Self {
        let (entity, resource) = (entity.into(), resource.into());
        Self { entity, resource, amounts: Vec::new(), limits: Vec::new(), parent: None }
    }

    /// Wants `tokens` of a limit.
    #[must_use]
    pub fn consume(mut self, limit: impl Into<String>, tokens: i64) -> Self {
        self.amounts.push((limit.into(), tokens));
        self
    }

    /// Limits that need not be stored.
    #[must_use]
    pub fn limits(mut self, limits: impl IntoIterator<Item = Limit>) -> Self {
        self.limits.extend(limits);
        self
    }

    /// Takes from this parent's bucket too.
    #[must_use]
    pub fn cascade_to(mut self, parent: impl Into<String>) -> Self {
        self.parent = Some(parent.into());
        self
    }

    pub(super) async fn acquire<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
    ) -> Result<Lease<S, C>, AcquireError> {
        let mut request =
            limiter.acquire(&self.entity, &self.resource).limits(self.limits.iter().cloned());
        for (limit, tokens) in &self.amounts {
            request = request.consume(limit, *tokens);
        }
        if let Some(parent) = &self.parent {
            request = request.cascade_to(parent);
        }
        request.await
    }
}

/// The [`Lease`] of a request, in its extensions: for a handler that learns what the work really
/// took. Cheap to clone; clones are one lease, and none knows of which store, so that a handler can
/// be tested over another one.
///
/// When the last clone is dropped, what was taken stays taken. With two layers around a service,
/// the handler finds the lease of the inner one.
///
/// ```
/// use sluicegate::AdjustError;
/// use sluicegate::tower::LeaseHandle;
///
/// async fn handler(request: http::Request<String>) -> Result<String, AdjustError> {
///     let answer = request.body().to_uppercase();
///     if let Some(lease) = request.extensions().get::<LeaseHandle>() {
///         match answer.len() {
///             0 => lease.give_back().await?,
///             more => lease.adjust("tpm", i64::try_from(more).unwrap_or(i64::MAX)).await?,
///         };
///     }
///     Ok(answer)
/// }
/// # drop(handler(http::Request::default()));
/// ```
#[derive(Clone)]
pub struct LeaseHandle {
    lease: Arc<dyn Held>,
}

/// A lease of any store.
trait Held: std::fmt::Debug + Send + Sync {
    fn adjust<'a>(&'a self, limit: &'a str, by: i64) -> Adjusting<'a>;
    fn adjust_milli<'a>(&'a self, limit: &'a str, by_milli: i64) -> Adjusting<'a>;
    fn give_back(&self) -> Adjusting<'_>;
    fn remaining(&self) -> Vec<Remaining>;
    fn is_near_limit(&self) -> bool;
    fn shadowed(&self) -> Option<&LimitExceeded>;
    fn cost(&self) -> Cost;
}

type Adjusting<'a> = BoxFuture<'a, Result<Adjusted, AdjustError>>;

impl LeaseHandle {
    pub(super) fn new<S: Store, C: Clock>(lease: Lease<S, C>) -> Self {
        Self { lease: Arc::new(lease) }
    }

    /// Adds `by` tokens to what was consumed: see [`Lease::adjust`].
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

    /// Gives back everything that was taken, once: see [`Lease::give_back`].
    ///
    /// # Errors
    /// [`AdjustError`].
    pub async fn give_back(&self) -> Result<Adjusted, AdjustError> {
        self.lease.give_back().await
    }

    /// What the limits of the request have left: see [`Lease::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Vec<Remaining> {
        self.lease.remaining()
    }

    /// Whether a limit of the request is nearly used up.
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        self.lease.is_near_limit()
    }

    /// In shadow mode: why the request would have been refused.
    #[must_use]
    pub fn shadowed(&self) -> Option<&LimitExceeded> {
        self.lease.shadowed()
    }

    /// What it took to be granted.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.lease.cost()
    }
}

impl std::fmt::Debug for LeaseHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lease.fmt(f)
    }
}

impl<S: Store, C: Clock> Held for Lease<S, C> {
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

    fn cost(&self) -> Cost {
        self.cost()
    }
}
