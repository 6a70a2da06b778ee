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

use crate::error::AcquireError;
use crate::permit::Permit;
use crate::store::Request;

/// The most pairs of a resource and a limit that have a label of their own.
const PAIRS_MAX: usize = 1_000;
const OTHER: &str = "other";

/// The outcomes of an acquire for one of its limits.
const OUTCOMES: [&str; 8] = [
    "granted",
    "refused",
    "not_taken",
    "never_admissible",
    "contended",
    "unavailable",
    "failed",
    "degraded",
];
const SHADOWED: &str = "shadowed";

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
        let outcomes = OUTCOMES.into_iter().chain([SHADOWED]).map(of).collect();
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
    /// Counts the result of a checked request.
    pub(crate) fn acquired(
        &self,
        request: &Request,
        near_share: f64,
        result: &Result<Permit, AcquireError>,
    ) {
        for limit in request.amounts.keys() {
            let counters = self.of(&request.resource, limit);
            if let Some(counter) = counters.outcomes.get(outcome(result, limit)) {
                counter.increment(1);
            }
        }
        let Ok(permit) = result else { return };
        for remaining in permit.remaining() {
            if remaining.share <= near_share && request.amounts.contains_key(&remaining.limit) {
                self.of(&request.resource, &remaining.limit).near.increment(1);
            }
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

/// The outcome of a request for one of its limits.
fn outcome(result: &Result<Permit, AcquireError>, limit: &LimitName) -> &'static str {
    match result {
        Ok(permit) if permit.degraded().is_some() => "degraded",
        Ok(permit) if permit.shadowed().is_some() => SHADOWED,
        Ok(_) => "granted",
        Err(AcquireError::LimitExceeded(exceeded)) => {
            let is_short = exceeded.violations().any(|violated| violated.limit == *limit);
            if is_short { "refused" } else { "not_taken" }
        }
        Err(AcquireError::NeverAdmissible(_)) => "never_admissible",
        Err(AcquireError::Contended { .. }) => "contended",
        Err(AcquireError::Unavailable(_)) => "unavailable",
        Err(AcquireError::InvalidRequest(_) | AcquireError::Setup(_)) => "failed",
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
