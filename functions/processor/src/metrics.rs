//! The figures of each event in CloudWatch's embedded metric format, one line on standard output.

use std::io::Write;

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use metrics_cloudwatch_embedded::{Builder, Collector};

use crate::report::Report;

/// Writes reports: namespace `Sluicegate`, dimension `Table`.
pub struct Metrics {
    collector: &'static Collector,
}

/// The process has a metrics recorder already.
#[derive(Debug, thiserror::Error)]
#[error("metrics are set up once per process: {0}")]
pub struct MetricsError(String);

impl Metrics {
    /// Sets up the metrics of one table for the whole process.
    ///
    /// # Errors
    /// [`MetricsError`] if the process has a `metrics` recorder already.
    pub fn init(table: &str) -> Result<Self, MetricsError> {
        let collector = Builder::new()
            .cloudwatch_namespace("Sluicegate")
            .with_dimension("Table", table.to_owned())
            // Zeros are written: without them a quiet table cannot be told from a dead processor.
            .emit_zeros(true)
            .init()
            .map_err(|error| MetricsError(error.to_string()))?;
        for (name, _) in COUNTS {
            describe_counter!(name, Unit::Count, "");
        }
        describe_histogram!(RECORD_AGE, Unit::Milliseconds, "");
        Ok(Self { collector })
    }

    /// Writes the figures of one event as one line.
    ///
    /// # Errors
    /// The error of the writer.
    pub fn write(&self, report: &Report, to: impl Write) -> std::io::Result<()> {
        for (name, count) in COUNTS {
            counter!(name).increment(count(report));
        }
        if let Some(age_ms) = report.record_age_ms {
            histogram!(RECORD_AGE).record(age_ms);
        }
        self.collector.flush(to)
    }
}

/// The name of a counter, and its figure.
type Count = (&'static str, fn(&Report) -> u64);

const COUNTS: [Count; 12] = [
    ("Records", |report| report.records),
    ("Deltas", |report| report.deltas),
    ("WindowUpdates", |report| report.window_updates),
    ("DuplicatesDropped", |report| report.duplicates_dropped),
    ("PartlyCounted", |report| report.partly_counted),
    ("Quarantined", |report| report.quarantined),
    ("Alerts", |report| report.alerts),
    ("AlertsSent", |report| report.alerts_sent),
    ("AlertsFailed", |report| report.alerts_failed),
    ("AlertsGivenUp", |report| report.alerts_given_up),
    ("RetryableFailures", |report| report.retryable_failures),
    ("WriteUnits", write_units),
];
/// Age of the oldest record of the event.
const RECORD_AGE: &str = "RecordAge";

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "units are small and positive"
)]
fn write_units(report: &Report) -> u64 {
    report.write_units.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn one_line_names_every_metric_with_its_unit() {
        let metrics = Metrics::init("sluicegate-limits").unwrap();
        let report = Report {
            records: 100,
            deltas: 200,
            window_updates: 4,
            duplicates_dropped: 7,
            partly_counted: 1,
            quarantined: 2,
            alerts: 3,
            alerts_sent: 2,
            alerts_failed: 2,
            alerts_given_up: 1,
            retryable_failures: 0,
            write_units: 5.0,
            record_age_ms: Some(1_250.0),
        };
        let mut line = Vec::new();
        metrics.write(&report, &mut line).unwrap();
        let mut line: Value = serde_json::from_slice(&line).unwrap();
        assert!(line["_aws"]["Timestamp"].take().is_u64());
        insta::assert_json_snapshot!(line);
        assert_eq!(line["RetryableFailures"], json!(0), "zeros are emitted");
        assert!(Metrics::init("again").is_err());
    }
}
