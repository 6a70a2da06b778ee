//! The metrics of leasing, through the `metrics` facade.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use sluicegate::{LeaseMode, Limit};

use super::{Counted, SECOND, limiter};

/// Sums of counters, last values of gauges, and the largest of each histogram.
#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<BTreeMap<String, f64>>>);

struct One(Kept, String);

impl One {
    fn keep(&self, change: impl FnOnce(f64) -> f64) {
        let mut kept = self.0.0.lock().unwrap();
        let value = kept.entry(self.1.clone()).or_default();
        *value = change(*value);
    }
}

impl CounterFn for One {
    fn increment(&self, value: u64) {
        self.keep(|sum| sum + value as f64);
    }

    fn absolute(&self, value: u64) {
        self.keep(|_| value as f64);
    }
}

impl GaugeFn for One {
    fn increment(&self, value: f64) {
        self.keep(|sum| sum + value);
    }

    fn decrement(&self, value: f64) {
        self.keep(|sum| sum - value);
    }

    fn set(&self, value: f64) {
        self.keep(|_| value);
    }
}

impl HistogramFn for One {
    fn record(&self, value: f64) {
        self.keep(|largest| largest.max(value));
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(One(self.clone(), key.name().to_owned())))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(One(self.clone(), key.name().to_owned())))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(One(self.clone(), key.name().to_owned())))
    }
}

async fn counted(mode: LeaseMode) -> (u64, BTreeMap<String, f64>) {
    let kept = Kept::default();
    let _recording = metrics::set_default_local_recorder(&kept);
    let table = Counted::new(4);
    let limiter = limiter(&table, mode);
    for _ in 0..1_000 {
        let limits = [Limit::per_second("rps", 10_000)];
        limiter.acquire("u0", "r").consume("rps", 1).limits(limits).no_cascade().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    limiter.shutdown(SECOND).await;
    let kept = kept.0.lock().unwrap().clone();
    (table.writes(), kept)
}

#[tokio::test(start_paused = true)]
async fn decisions_and_writes_are_counted() {
    let (writes, kept) = counted(LeaseMode::default()).await;
    assert_eq!(kept["sluicegate_leased_decisions_total"], 1_000.0);
    assert_eq!(kept["sluicegate_lease_writes_total"], writes as f64);
    let reduction = 1.0 - writes as f64 / 1_000.0;
    assert!((kept["sluicegate_lease_write_reduction"] - reduction).abs() < 0.01, "{kept:?}");
    let [leased, unused] =
        ["sluicegate_leased_tokens_total", "sluicegate_unused_tokens_total"].map(|name| kept[name]);
    assert_eq!(leased - unused, 1_000.0);
    assert!((1.0..20.0).contains(&kept["sluicegate_lease_waits_total"]), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn the_age_of_a_commit_is_measured() {
    let (_, kept) = counted(LeaseMode::WriteBehind { threshold: 100_000 }).await;
    let age = kept["sluicegate_commit_age_seconds"];
    assert!(age > 0.4 && age < 1.0, "{age} s");
}
