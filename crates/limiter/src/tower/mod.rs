//! Rate limiting for HTTP services: a tower layer.
//!
//! A [`RateLimitLayer`] has a limiter and an extractor. The extractor says what a request takes
//! ([`Wanted`]), or `None` for one that is not limited. What is granted goes on to the inner
//! service with a [`LeaseHandle`] in its extensions; what is refused never reaches it.
//!
//! ```
//! use http::request::Parts;
//! use sluicegate::tower::{RateLimitLayer, Wanted};
//! use sluicegate::{CompositeStore, Limit, Limiter, MemoryTable};
//!
//! let limiter = Limiter::new(CompositeStore::on(MemoryTable::new()));
//! let layer = RateLimitLayer::new(limiter, |parts: &Parts| {
//!     let user = parts.headers.get("x-user")?.to_str().ok()?;
//!     Some(Wanted::new(user, "api").consume("rpm", 1).limits([Limit::per_minute("rpm", 100)]))
//! });
//! # drop(layer);
//! ```
//!
//! # What the client sees
//!
//! Every answer to a limited request has the fields of [draft-ietf-httpapi-ratelimit-headers-10],
//! with one member for each limit that was asked:
//!
//! ```text
//! RateLimit-Policy: "rpm";q=100;w=60
//! RateLimit: "rpm";r=50;t=30
//! ```
//!
//! * `q`: what a full bucket holds (the burst), in whole tokens.
//! * `w`: the refill period in seconds; absent when that is no whole number, and for a quota. A
//!   bucket refills steadily: `w` is the time in which a limit without a burst of its own fills.
//! * `r`: what is left, in whole tokens, rounded down; never negative, also while a debt stands.
//! * `t`: seconds until the bucket is full again, rounded up; absent for a quota. With steady
//!   refill there is more long before that: when a refused request can be repeated is said by
//!   `Retry-After`.
//!
//! A limit of a parent is `"parent:rpm"`: a name that no limit can have. The fields are *appended*,
//! so that two layers, one around the other, add up to one list. They are left out where nothing is
//! known, and altogether by a limiter in shadow mode: nobody should slow down for a trial.
//!
//! | what happened | status | |
//! |---|---|---|
//! | [`LimitExceeded`](crate::AcquireError::LimitExceeded) | 429 | `Retry-After` in whole seconds, rounded up; absent for a quota that is used up |
//! | [`NeverAdmissible`](crate::AcquireError::NeverAdmissible) | 400 | waiting does not help |
//! | [`Contended`](crate::AcquireError::Contended), [`Unavailable`](crate::AcquireError::Unavailable) | 503 | |
//! | [`InvalidRequest`](crate::AcquireError::InvalidRequest), [`Setup`](crate::AcquireError::Setup) | 500 | an extractor that passes on what clients write should check it first |
//!
//! The body of a refusal is a problem ([RFC 9457], `application/problem+json`) that names limits,
//! never entities, resources or causes; those go to the log, by way of `tracing`.
//!
//! [draft-ietf-httpapi-ratelimit-headers-10]: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-10
//! [RFC 9457]: https://www.rfc-editor.org/rfc/rfc9457

mod layer;
mod request;
mod response;
mod service;

pub use layer::RateLimitLayer;
pub use request::{LeaseHandle, Wanted};
pub use service::{RateLimit, ResponseFuture};
