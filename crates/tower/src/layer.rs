//! The layer: holds the data that all wrapped services share.

use std::sync::Arc;

use http::request::Parts;
use sluicegate::{Clock, Limiter, Store, SystemClock};
use tower_layer::Layer;

use crate::rejection::Rejection;
use crate::request::LimitRequest;
use crate::service::RateLimit;

/// Wraps services into [`RateLimit`]. Cheap to clone; all wrapped services share the limiter.
pub struct RateLimitLayer<F, S, C = SystemClock> {
    limiter: Limiter<S, C>,
    extract: Arc<F>,
}

impl<F, S: Store, C: Clock> RateLimitLayer<F, S, C>
where
    F: Fn(&Parts) -> Result<Option<LimitRequest>, Rejection>,
{
    /// A layer that asks `limiter` for the tokens that `extract` returns. `Ok(None)`: the request
    /// is not limited. `Err`: this is the response to it, and the limiter is not asked.
    ///
    /// The extractor runs before anything else and should only read the request. An authenticating
    /// layer around this one should find out the entity and leave it in the request's extensions.
    pub fn new(limiter: Limiter<S, C>, extract: F) -> Self {
        Self { limiter, extract: Arc::new(extract) }
    }
}

impl<I, F, S, C> Layer<I> for RateLimitLayer<F, S, C> {
    type Service = RateLimit<I, F, S, C>;

    fn layer(&self, inner: I) -> Self::Service {
        RateLimit::new(inner, self.limiter.clone(), self.extract.clone())
    }
}

impl<F, S, C> Clone for RateLimitLayer<F, S, C> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), extract: self.extract.clone() }
    }
}

impl<F, S, C> std::fmt::Debug for RateLimitLayer<F, S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
