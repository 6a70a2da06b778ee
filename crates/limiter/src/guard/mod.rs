//! Decides requests while the store does not answer.
//!
//! Every call of a limiter on its store goes through here. An answer of the store stands; only
//! without one the limiter's [`OnUnavailable`](crate::OnUnavailable) decides. Every call has a
//! deadline, and a [`BreakerConfig`] spares the calls of an outage that wait.

mod answer;
mod breaker;
mod call;
mod guarded;
mod health;
mod local;
mod local_bucket;
mod pending_debits;
mod recovery;
mod settle;

pub use self::breaker::BreakerConfig;
pub(crate) use self::call::Granted;
pub(crate) use self::guarded::{CallSettings, Guard};
