//! Awaits a request: takes held tokens, or asks the store.

use std::future::IntoFuture;

use futures_util::future::{BoxFuture, FutureExt as _};

use super::acquire::AcquireRequest;
#[cfg(feature = "leasing")]
use super::attempt::is_traced;
use super::attempt::{in_acquire_span, wait_for};
use super::count::count;
use crate::error::AcquireError;
use crate::limiter::Limiter;
use crate::permit::Permit;

impl AcquireRequest<&Limiter> {
    async fn send(self) -> Result<Permit, AcquireError> {
        #[cfg(feature = "leasing")]
        if let Some(permit) = self.take_held() {
            return Ok(permit);
        }
        let wait = self.limiter.wait_of(self.wait);
        let correction_time_max = self.limiter.guard().correction_time_max(self.deadline);
        let (limiter, request) = self.into_request()?;
        let ask = || in_acquire_span(&request, limiter.guard().take(&request));
        let result = match wait {
            Some(wait) => wait_for(limiter, &request, wait, &|| ask().boxed()).await,
            None => ask().await,
        };
        let result = Permit::of(limiter, correction_time_max, result);
        count(limiter, &request.resource, request.amounts.keys(), result.as_ref());
        result
    }

    /// Takes the tokens if they are held, as `try_acquire` does. Three kinds of requests do not
    /// take them here. A request that may wait does not, because others may be ahead of it. While
    /// spans are recorded, no request does, because `in_acquire_span` opens the span later. While
    /// the store is unavailable, no request does, because taking may start a lease.
    #[cfg(feature = "leasing")]
    fn take_held(&self) -> Option<Permit> {
        let leased = self.limiter.leased()?;
        let is_unavailable = self.limiter.guard().is_breaker_open();
        if self.wait.is_some() || is_traced() || is_unavailable {
            return None;
        }
        leased.take_if_held(self)
    }
}

impl<'a> IntoFuture for AcquireRequest<&'a Limiter> {
    type Output = Result<Permit, AcquireError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
