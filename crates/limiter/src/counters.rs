//! The counters of a store.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, number: u32) {
        self.0.fetch_add(number.into(), Ordering::Relaxed);
    }

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
#[non_exhaustive]
pub struct Counters {
    /// Corrections that had to give up their conditions on the balance.
    pub forced_adjusts: Counter,
    /// Writes that may have been done twice or not at all. Includes writes that were repeated after
    /// a lost answer and give back more of a limit than they take: the first attempt may still take
    /// effect once the bucket has forgotten its id ([`guide`](crate::guide#lost-answers)).
    pub ambiguous: Counter,
    /// Items whose refill time was more than a minute ahead of this clock.
    pub clocks_ahead: Counter,
    /// Requests that shadow mode granted although a limit was short.
    pub shadowed: Counter,
    /// Acquires that the store did not decide: it did not answer in time, answered that it failed,
    /// or was not asked.
    pub undecided_by_store: Counter,
    /// Those of them that were granted nevertheless.
    pub degraded: Counter,
    /// The number of times that the store became unavailable.
    pub outages: Counter,
    /// Under `OnUnavailable::Local`: corrections that debited the grants of an outage at the store,
    /// one for each bucket.
    pub outage_debits: Counter,
    /// Grants of an outage, or sums of them, that could not be debited at the store.
    pub outage_debits_lost: Counter,
}
