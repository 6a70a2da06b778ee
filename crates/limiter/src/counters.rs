//! What a store counts besides its answers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts since the store was made.
#[derive(Debug, Default)]
pub struct Counters {
    /// Corrections that had to give up their guards.
    pub forced_adjusts: Counter,
    /// Writes of which nobody knows whether they happened twice or not at all.
    pub ambiguous: Counter,
    /// Items whose refill time was more than a minute ahead of this clock.
    pub clocks_ahead: Counter,
    /// Requests that shadow mode let pass although a limit was short.
    pub shadowed: Counter,
}
