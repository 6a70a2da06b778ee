//! The service: asks the limiter first, then calls the inner service or responds in its place.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use sluicegate::Limiter;
use sluicegate::settings::Mode;
use tower_service::Service;

use crate::fields::Fields;
use crate::refusal::refusal;
use crate::rejection::Rejection;
use crate::request::LimitRequest;

/// The future of the response of a [`RateLimit`].
pub type ResponseFuture<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

/// A service whose requests are limited: see [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Refusals are responses, never errors. Their body is made from a `String`, which the bodies of
/// axum, reqwest and `http_body_util::Full` allow.
pub struct RateLimit<I, F> {
    inner: I,
    limiter: Limiter,
    extract: Arc<F>,
}

impl<I, F> RateLimit<I, F> {
    pub(crate) const fn new(inner: I, limiter: Limiter, extract: Arc<F>) -> Self {
        Self { inner, limiter, extract }
    }
}

impl<I, F, A, B> Service<Request<A>> for RateLimit<I, F>
where
    I: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    I::Future: Send + 'static,
    F: Fn(&Parts) -> Result<Option<LimitRequest>, Rejection>,
    A: Send + 'static,
    B: From<String>,
{
    type Response = Response<B>;
    type Error = I::Error;
    type Future = ResponseFuture<B, I::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let wanted = match (self.extract)(&parts) {
            Ok(Some(wanted)) => wanted,
            Ok(None) => return Box::pin(self.inner.call(Request::from_parts(parts, body))),
            Err(rejection) => {
                return Box::pin(async { Ok(rejection.into_response().map(B::from)) });
            }
        };
        // The service that was polled ready must be the one that is called; its clone may not be
        // ready.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let limiter = self.limiter.clone();
        Box::pin(async move {
            let permit = match wanted.clone().bind(&limiter).await {
                Ok(permit) => Arc::new(permit),
                Err(error) => {
                    let (entity, resource) = (wanted.entity(), wanted.resource());
                    let response = refusal(&error, entity, resource, limiter.clock().now());
                    return Ok(response.map(B::from));
                }
            };
            parts.extensions.insert(permit.clone());
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if limiter.mode() == Mode::Enforce {
                let (remaining, now) = (permit.remaining(), limiter.clock().now());
                Fields::new(&remaining, wanted.entity(), now, None)
                    .append_to(response.headers_mut());
            }
            Ok(response)
        })
    }
}

impl<I: Clone, F> Clone for RateLimit<I, F> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.limiter.clone(), self.extract.clone())
    }
}

impl<I: std::fmt::Debug, F> std::fmt::Debug for RateLimit<I, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
