//! The layer: holds the data that all wrapped services share.

use std::sync::Arc;

use http::request::Parts;
use sluicegate::Limiter;
use tower_layer::Layer;

use crate::rejection::Rejection;
use crate::request::LimitRequest;
use crate::service::RateLimit;

/// Wraps services into [`RateLimit`]. Cheap to clone; all wrapped services share the limiter.
pub struct RateLimitLayer<F> {
    limiter: Limiter,
    extract: Arc<F>,
}

impl<F> RateLimitLayer<F>
where
    F: Fn(&Parts) -> Result<Option<LimitRequest>, Rejection>,
{
    /// A layer that asks `limiter` for the tokens that `extract` returns. `Ok(None)`: the request
    /// is not limited. `Err`: this is the response to it, and the limiter is not asked.
    ///
    /// The extractor runs before anything else and should only read the request. An authenticating
    /// layer around this one should find out the entity and leave it in the request's extensions.
    pub fn new(limiter: Limiter, extract: F) -> Self {
        Self { limiter, extract: Arc::new(extract) }
    }
}

impl<I, F> Layer<I> for RateLimitLayer<F> {
    type Service = RateLimit<I, F>;

    fn layer(&self, inner: I) -> Self::Service {
        RateLimit::new(inner, self.limiter.clone(), self.extract.clone())
    }
}

impl<F> Clone for RateLimitLayer<F> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), extract: self.extract.clone() }
    }
}

impl<F> std::fmt::Debug for RateLimitLayer<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
