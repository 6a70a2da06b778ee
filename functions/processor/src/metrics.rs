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
        for name in COUNTS {
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
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "units are small and positive"
        )]
        let write_units = report.write_units.ceil() as u64;
        for (name, count) in [
            (RECORDS, report.records),
            (DELTAS, report.deltas),
            (WINDOW_UPDATES, report.window_updates),
            (DUPLICATES_DROPPED, report.duplicates_dropped),
            (QUARANTINED, report.quarantined),
            (ALERTS, report.alerts),
            (ALERTS_SENT, report.alerts_sent),
            (ALERTS_FAILED, report.alerts_failed),
            (ALERTS_GIVEN_UP, report.alerts_given_up),
            (RETRYABLE_FAILURES, report.retryable_failures),
            (WRITE_UNITS, write_units),
        ] {
            counter!(name).increment(count);
        }
        if let Some(age_ms) = report.record_age_ms {
            histogram!(RECORD_AGE).record(age_ms);
        }
        self.collector.flush(to)
    }
}

const RECORDS: &str = "Records";
const DELTAS: &str = "Deltas";
const WINDOW_UPDATES: &str = "WindowUpdates";
const DUPLICATES_DROPPED: &str = "DuplicatesDropped";
const QUARANTINED: &str = "Quarantined";
const ALERTS: &str = "Alerts";
const ALERTS_SENT: &str = "AlertsSent";
const ALERTS_FAILED: &str = "AlertsFailed";
const ALERTS_GIVEN_UP: &str = "AlertsGivenUp";
const RETRYABLE_FAILURES: &str = "RetryableFailures";
const WRITE_UNITS: &str = "WriteUnits";
const COUNTS: [&str; 11] = [
    RECORDS,
    DELTAS,
    WINDOW_UPDATES,
    DUPLICATES_DROPPED,
    QUARANTINED,
    ALERTS,
    ALERTS_SENT,
    ALERTS_FAILED,
    ALERTS_GIVEN_UP,
    RETRYABLE_FAILURES,
    WRITE_UNITS,
];
/// Age of the oldest record of the event.
const RECORD_AGE: &str = "RecordAge";

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
