//! Rate limiting for HTTP services: a tower layer.
//!
//! A [`RateLimitLayer`] has a limiter and an extractor. The extractor returns the entity and the
//! cost of a request ([`LimitRequest`]), `None` for a request that is not limited, or the response
//! to one that goes no further ([`Rejection`]). A granted request goes on to the inner service with
//! an `Arc<`[`Permit`](sluicegate::Permit)`>` in its extensions; a refused one never reaches it.
//!
//! ```
//! use http::StatusCode;
//! use sluicegate_tower::{RateLimitLayer, LimitRequest};
//! use sluicegate::{Limit, Limiter, MemoryStore};
//!
//! let limiter = Limiter::new(MemoryStore::new());
//! let layer = RateLimitLayer::new(limiter, |parts| {
//!     if parts.uri.path() == "/health" {
//!         return Ok(None);
//!     }
//!     let user = parts.headers.get("x-user").ok_or(StatusCode::BAD_REQUEST)?.to_str()?;
//!     let limits = [Limit::per_minute("rpm", 100)];
//!     Ok(Some(LimitRequest::new(user, "api").consume("rpm", 1).limits(limits)))
//! });
//! # drop(layer);
//! ```
//!
//! # Corrections
//!
//! A handler that learns the real cost of the work corrects the permit of the request. When the
//! last clone is dropped, the tokens stay taken. With two layers around a service, the handler
//! finds the permit of the inner one. The permit may outlive the response: a body that is still
//! being sent can hold a clone and adjust it with every part. The fields of the response are those
//! at the start of its body.
//!
//! ```
//! use std::sync::Arc;
//! use sluicegate::{AdjustError, Permit};
//!
//! async fn handler(request: http::Request<String>) -> Result<String, AdjustError> {
//!     let answer = request.body().to_uppercase();
//!     if let Some(permit) = request.extensions().get::<Arc<Permit>>() {
//!         match answer.len() {
//!             0 => permit.give_back().await?,
//!             more => permit.adjust("tpm", i64::try_from(more).unwrap_or(i64::MAX)).await?,
//!         };
//!     }
//!     Ok(answer)
//! }
//! # drop(handler(http::Request::default()));
//! ```
//!
//! # Entities and credentials
//!
//! An entity's id is no secret: it is a key of the table and of its stream, it is in usage windows,
//! and the limiter's spans and some of its errors name it (field `entity`). A credential, such as
//! an API key, must not become one. Look up its owner, or use its hash:
//! `LimitRequest::new(hex(sha256(key)), ...)`, which also turns every text into a legal id. The log
//! lines of the layer name no entity, except for a broken item, which must be found to be repaired.
//!
//! # Fields of a response
//!
//! Every response to a limited request whose balances are known has the fields of
//! [draft-ietf-httpapi-ratelimit-headers-10], with one member for each requested limit:
//!
//! ```text
//! RateLimit-Policy: "rpm";q=100;w=60
//! RateLimit: "rpm";r=50;t=30
//! ```
//!
//! * `q`: the tokens of a full bucket (the burst), in whole tokens.
//! * `w`: the refill period in seconds; absent if that is no whole number, and for a quota. A
//!   bucket refills steadily: `w` is the time in which a limit without a burst of its own fills.
//! * `r`: the tokens left, in whole tokens, rounded down; never negative, also while there is a
//!   debt.
//! * `t`: seconds, rounded up; absent for a quota. For a limit that is short: the time until it has
//!   the requested amount. For any other: the time until the bucket is full again, so that a client
//!   that spreads `r` over `t` asks no faster than the limit refills; in a response with
//!   `Retry-After`, no later than that.
//!
//! A limit of a parent is `"parent:rpm"`: a name that no limit can have. The fields are *appended*,
//! so that two nested layers add up to one list. They are left out if the balance is not known, and
//! always by a limiter in shadow mode: no client should slow down for a trial.
//!
//! | result | status | `Retry-After` |
//! |---|---|---|
//! | [`LimitExceeded`](sluicegate::AcquireError::LimitExceeded) | 429 | whole seconds, rounded up: the largest `t`; absent for a quota that is used up |
//! | [`NeverAdmissible`](sluicegate::AcquireError::NeverAdmissible) | 400 | waiting does not help |
//! | [`InvalidRequest`](sluicegate::AcquireError::InvalidRequest): an entity, a resource or an amount that is invalid | 400 | |
//! | [`Contended`](sluicegate::AcquireError::Contended) | 503 | 1 |
//! | [`Unavailable`](sluicegate::AcquireError::Unavailable): under `Deny`, or for limits unknown to the process under `Local` | 503 | 5 |
//! | any other [`InvalidRequest`](sluicegate::AcquireError::InvalidRequest), [`Setup`](sluicegate::AcquireError::Setup) | 500 | |
//! | the extractor's [`Rejection`] | its own | its own |
//!
//! After a 503 the tokens may have been taken.
//!
//! A request that is granted while the store is unavailable
//! ([`OnUnavailable`](sluicegate::OnUnavailable)) gets the same response as any other. Under
//! `Allow`, the fields are missing, as no balance is known; under `Local`, they are those of the
//! process's own buckets. No field tells the client, who can do nothing about it; a handler asks
//! [`Permit::degraded`](sluicegate::Permit::degraded).
//!
//! The body of a refusal is a problem ([RFC 9457], `application/problem+json`) that names limits
//! (`violated-policies`), never entities, resources or causes.
//!
//! [draft-ietf-httpapi-ratelimit-headers-10]: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-10
//! [RFC 9457]: https://www.rfc-editor.org/rfc/rfc9457

mod fields;
mod layer;
mod problem;
mod refusal;
mod rejection;
mod request;
mod service;

pub use fields::headers_of_grant;
pub use layer::RateLimitLayer;
pub use problem::problem;
pub use refusal::refusal;
pub use rejection::Rejection;
pub use request::LimitRequest;
pub use service::{RateLimit, ResponseFuture};
