//! The store that hands out tokens which it leased from another store, as its users see it.

use std::sync::Arc;

use super::leaser::Leaser;
use super::remembered::RememberedRequests;

/// The tokens that a limiter leased, and its work: see [`Limiter::leased`](crate::Limiter::leased).
#[derive(Clone)]
pub struct Leased {
    pub(super) leaser: Arc<Leaser>,
    pub(super) remembered: Arc<RememberedRequests>,
}

impl Leased {
    /// The number of buckets that hold tokens or have something to settle.
    #[must_use]
    pub fn held_keys(&self) -> usize {
        self.leaser.watched().len()
    }

    /// The number of requests and corrections decided here so far. It lags by up to a quarter of
    /// `max_age`.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        self.leaser.meter.decisions()
    }

    /// The number of writes attempted so far, to lease and to settle.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.leaser.meter.writes()
    }
}

impl std::fmt::Debug for Leased {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leased").finish_non_exhaustive()
    }
}
