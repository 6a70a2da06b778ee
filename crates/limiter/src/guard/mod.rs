//! Decides requests while the store does not answer.
//!
//! Every acquire, correction and peek goes through `guard/call.rs`, with two exceptions: held
//! tokens, which a request may take before it asks the guard, and the writes that `leasing/` makes
//! of its own accord. An answer of the store stands; only without one the limiter's
//! [`OnUnavailable`](crate::OnUnavailable) decides. Every call has a deadline. During an outage the
//! breaker refuses calls at once, so that they do not wait for their deadlines; [`BreakerConfig`]
//! says when. If a caller leaves before its deadline, a task probes the store
//! (`unfinished_calls.rs`).

mod answer;
mod breaker;
mod breaker_config;
mod call;
mod health;
mod local;
mod local_bucket;
mod pending_debits;
mod recovery;
mod store_guard;
mod unfinished_calls;

#[cfg(feature = "leasing")]
pub(crate) use self::answer::MaybeOutage;
pub use self::breaker_config::BreakerConfig;
pub(crate) use self::call::Granted;
pub(crate) use self::store_guard::{CallSettings, Guard};
