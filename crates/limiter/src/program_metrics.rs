//! Metrics of a limiter, for the recorder of the `metrics` facade that the program installs. The
//! guide lists them.
//!
//! No label is an entity. Resources and limits are labels; beyond 1,000 pairs, further ones are
//! `other`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, counter, gauge, histogram};
use quick_cache::DefaultHashBuilder;
use sluicegate_core::{LimitName, Resource};

/// The most pairs of a resource and a limit that have a label of their own.
const PAIRS_MAX: usize = 1_000;
const OTHER: &str = "other";

/// The outcome of an acquire for one of its limits, as metrics name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutcomeLabel {
    Granted,
    Refused,
    NotTaken,
    NeverAdmissible,
    Contended,
    Unavailable,
    Failed,
    Degraded,
    Shadowed,
}

/// The names of the outcomes, in their order.
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
    outcomes: [Counter; OUTCOMES.len()],
    near: Counter,
}

impl OfLimit {
    fn new(resource: &str, limit: &str) -> Self {
        let of = |outcome: &'static str| {
            let (resource, limit) = (resource.to_owned(), limit.to_owned());
            counter!("sluicegate_acquires_total", "resource" => resource, "limit" => limit, "outcome" => outcome)
        };
        let outcomes = OUTCOMES.map(of);
        let (resource, limit) = (resource.to_owned(), limit.to_owned());
        let near =
            counter!("sluicegate_near_limit_total", "resource" => resource, "limit" => limit);
        Self { outcomes, near }
    }

    fn count(&self, outcome: OutcomeLabel, is_near: bool) {
        self.outcomes[outcome as usize].increment(1);
        if is_near {
            self.near.increment(1);
        }
    }
}

/// The counters of a limiter, made at the first request of a resource and a limit.
#[derive(Default)]
pub(crate) struct ProgramMetrics {
    pairs: RwLock<HashMap<(Resource, LimitName), OfLimit, DefaultHashBuilder>>,
    /// Those of all further pairs.
    other: OnceLock<OfLimit>,
}

impl ProgramMetrics {
    /// Counts the outcomes of a request for its limits, and if they are nearly used up.
    pub(crate) fn acquired<'a>(
        &self,
        resource: &Resource,
        outcomes: impl Iterator<Item = (&'a LimitName, OutcomeLabel, bool)>,
    ) {
        let pairs = || self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        let mut known = pairs();
        for (limit, outcome, is_near) in outcomes {
            let pair = (resource.clone(), limit.clone());
            if let Some(counters) = known.get(&pair) {
                counters.count(outcome, is_near);
                continue;
            }
            drop(known);
            self.first(pair, outcome, is_near);
            known = pairs();
        }
    }

    /// The counter of the grants of a pair that was counted before; that of `other` for a pair that
    /// has no label.
    #[cfg(feature = "leasing")]
    pub(crate) fn granted_counter(&self, resource: &Resource, limit: &LimitName) -> Counter {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        let counters = pairs.get(&(resource.clone(), limit.clone()));
        counters.unwrap_or_else(|| self.other()).outcomes[OutcomeLabel::Granted as usize].clone()
    }

    fn other(&self) -> &OfLimit {
        self.other.get_or_init(|| OfLimit::new(OTHER, OTHER))
    }

    /// Counts the first outcome of a pair.
    fn first(&self, pair: (Resource, LimitName), outcome: OutcomeLabel, is_near: bool) {
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        if pairs.len() >= PAIRS_MAX && !pairs.contains_key(&pair) {
            return self.other().count(outcome, is_near);
        }
        let (resource, limit) = &pair;
        let new = OfLimit::new(resource.as_str(), limit.as_str());
        pairs.entry(pair).or_insert(new).count(outcome, is_near);
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
pub(crate) fn call_took(operation: &'static str, took: Duration) {
    histogram!("sluicegate_store_duration_seconds", "operation" => operation)
        .record(took.as_secs_f64());
}

/// Reports that the store became unavailable, or answers again.
pub(crate) fn breaker(is_open: bool) {
    gauge!("sluicegate_breaker_open").set(f64::from(u8::from(is_open)));
}
