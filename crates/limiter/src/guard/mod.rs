//! What is done while the store does not answer.
//!
//! Everything that a limiter asks of its store goes through here. The store's answer is the answer;
//! only where there is none, the limiter's [`OnUnavailable`](crate::OnUnavailable) decides. Every call has a deadline, and
//! a [`BreakerConfig`] spares the calls of an outage even that.

mod answer;
mod breaker;
mod call;
mod guarded;
mod health;
mod local;
mod pending_debits;
mod recovery;
mod settle;

pub use self::breaker::BreakerConfig;
pub(crate) use self::call::Granted;
pub(crate) use self::guarded::{Guard, Settings};
