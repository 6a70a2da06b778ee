//! Metrics of a limiter, for the recorder of the `metrics` facade that the program installs. The
//! guide lists them.
//!
//! No label is an entity. Resources and limits are labels; beyond 1,000 pairs, further ones are
//! `other`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, counter, gauge, histogram};
use sluicegate_core::{LimitName, Resource};

/// The most pairs of a resource and a limit that have a label of their own.
const PAIRS_MAX: usize = 1_000;
const OTHER: &str = "other";

/// The outcomes of an acquire for one of its limits.
const OUTCOMES: [&str; 9] = [
    "granted",
    "refused",
    "not_taken",
    "never_admissible",
    "contended",
    "unavailable",
    "failed",
    "degraded",
    "shadowed",
];

/// The counters of one resource and limit.
struct OfLimit {
    outcomes: HashMap<&'static str, Counter>,
    near: Counter,
}

impl OfLimit {
    fn new(resource: &str, limit: &str) -> Self {
        let of = |outcome: &'static str| {
            let (resource, limit) = (resource.to_owned(), limit.to_owned());
            let counter = counter!("sluicegate_acquires_total", "resource" => resource, "limit" => limit, "outcome" => outcome);
            (outcome, counter)
        };
        let outcomes = OUTCOMES.into_iter().map(of).collect();
        let (resource, limit) = (resource.to_owned(), limit.to_owned());
        let near =
            counter!("sluicegate_near_limit_total", "resource" => resource, "limit" => limit);
        Self { outcomes, near }
    }
}

/// The counters of a limiter, made at the first request of a resource and a limit.
#[derive(Default)]
pub(crate) struct Metered {
    pairs: RwLock<HashMap<Resource, HashMap<LimitName, Arc<OfLimit>>>>,
}

impl Metered {
    /// Counts the outcome of a request for one of its limits.
    pub(crate) fn acquired(
        &self,
        resource: &Resource,
        limit: &LimitName,
        outcome: &'static str,
        is_near: bool,
    ) {
        let counters = self.of(resource, limit);
        if let Some(counter) = counters.outcomes.get(outcome) {
            counter.increment(1);
        }
        if is_near {
            counters.near.increment(1);
        }
    }

    fn of(&self, resource: &Resource, limit: &LimitName) -> Arc<OfLimit> {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = pairs.get(resource).and_then(|limits| limits.get(limit)) {
            return known.clone();
        }
        drop(pairs);
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        let count: usize = pairs.values().map(HashMap::len).sum();
        if count >= PAIRS_MAX {
            return Arc::new(OfLimit::new(OTHER, OTHER));
        }
        let limits = pairs.entry(resource.clone()).or_default();
        let new = || Arc::new(OfLimit::new(resource.as_str(), limit.as_str()));
        limits.entry(limit.clone()).or_insert_with(new).clone()
    }
}

/// Counts capacity units. A shared write has fractions of a unit for each request; the counters are
/// of whole units.
pub(crate) fn spent(write_units: f64, read_units: f64) {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    static READ: AtomicU64 = AtomicU64::new(0);
    if write_units > 0.0 {
        counter!("sluicegate_write_units_total").absolute(add(&WRITTEN, write_units));
    }
    if read_units > 0.0 {
        counter!("sluicegate_read_units_total").absolute(add(&READ, read_units));
    }
}

/// Adds units to a sum in thousandths, and returns it in whole units.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "units of a call")]
fn add(milliunits: &AtomicU64, units: f64) -> u64 {
    let more = (units * 1_000.0).round() as u64;
    (milliunits.fetch_add(more, Ordering::Relaxed) + more) / 1_000
}

/// Reports the time that a call on the store took, waiting for its turn and repetitions included.
pub(crate) fn answered(operation: &'static str, took: Duration) {
    histogram!("sluicegate_store_duration_seconds", "operation" => operation)
        .record(took.as_secs_f64());
}

/// Reports that the store became unavailable, or answers again.
pub(crate) fn breaker(is_open: bool) {
    gauge!("sluicegate_breaker_open").set(f64::from(u8::from(is_open)));
}
