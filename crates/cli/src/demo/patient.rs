//! The limiter of the simulated gateways.

use std::time::Duration;

use sluicegate::store::Store;
use sluicegate::{Limiter, LimiterBuilder, OnUnavailable};

/// Long, because the engine is this process: it answers when the machine has time.
const DEADLINE: Duration = Duration::from_secs(60);

/// A limiter that never admits without an answer of the store.
pub(super) fn patient<S: Store>(limiter: LimiterBuilder<S>) -> Limiter {
    limiter.deadline(DEADLINE).on_unavailable(OnUnavailable::Deny).build()
}
