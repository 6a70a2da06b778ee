//! Reports of the commands that feed a processor: on standard error, as they happen.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluicegate_local::Observer;
use sluicegate_processor::{Deliveries, Outcome, Report, chain};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::error::{CliError, say};

/// The most reasons of one kind that are shown in a row; an unavailable table gives thousands.
const FAILURES_TOLD: u32 = 3;
/// A command that ends by itself gives up if nothing was counted for this long.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// The figures of all batches so far, and the reports made. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Feed {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    totals: Report,
    failures_in_a_row: u32,
    /// Since when nothing was counted, and the reason; `None`: the newest batch made progress.
    failing: Option<(Instant, String)>,
}

impl Feed {
    /// An observer that adds up, and reports, the result of each batch.
    pub(crate) fn observer(&self) -> Observer {
        let feed = self.clone();
        Arc::new(move |outcome| feed.lock().add(outcome))
    }

    /// Adds deliveries of alerts that no batch made.
    pub(crate) fn add_deliveries(&self, deliveries: &Deliveries) {
        let totals = &mut self.lock().totals;
        totals.alerts_sent += deliveries.sent;
        totals.alerts_failed += deliveries.failed + deliveries.given_up;
        totals.alerts_given_up += deliveries.given_up;
    }

    /// The figures so far; the age is that of the oldest record of the newest batch.
    pub(crate) fn totals(&self) -> Report {
        self.lock().totals
    }

    /// Resolves with the reason when nothing could be counted for a minute.
    pub(crate) async fn stuck(&self) -> String {
        loop {
            if let Some((since, reason)) = &self.lock().failing
                && since.elapsed() > STUCK_AFTER
            {
                return reason.clone();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn add(&mut self, outcome: &Outcome) {
        let (totals, report) = (&mut self.totals, &outcome.report);
        totals.records += report.records;
        totals.deltas += report.deltas;
        totals.window_updates += report.window_updates;
        totals.duplicates_dropped += report.duplicates_dropped;
        totals.quarantined += report.quarantined;
        totals.alerts += report.alerts;
        totals.alerts_sent += report.alerts_sent;
        totals.alerts_failed += report.alerts_failed;
        totals.alerts_given_up += report.alerts_given_up;
        totals.retryable_failures += report.retryable_failures;
        totals.write_units += report.write_units;
        totals.record_age_ms = report.record_age_ms.or(totals.record_age_ms);
        for entry in outcome.quarantined.iter().filter(|entry| entry.is_new) {
            say(&format!("quarantined {}: {}", entry.key.sk(), entry.reason));
        }
        let Some(failure) = outcome.failures.first() else {
            (self.failures_in_a_row, self.failing) = (0, None);
            return;
        };
        let since = match self.failing.take() {
            Some((since, _)) if report.window_updates == 0 => since,
            _ => Instant::now(),
        };
        self.failing = Some((since, failure.reason.to_string()));
        self.failures_in_a_row += 1;
        if self.failures_in_a_row <= FAILURES_TOLD {
            say(&format!("not written yet, trying again: {}", failure.reason));
        }
    }
}

impl From<sluicegate_local::Error> for CliError {
    fn from(error: sluicegate_local::Error) -> Self {
        match error {
            sluicegate_local::Error::Table(error) => error.into(),
            error => Self::Store(chain(&error)),
        }
    }
}

/// Resolves when the process is asked to end: Ctrl-C, or SIGTERM.
///
/// # Errors
/// [`CliError::Store`] if the process cannot wait for signals.
pub(crate) fn interrupted() -> Result<impl Future<Output = ()> + Send, CliError> {
    let failed = |error| CliError::Store(format!("cannot wait for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Shows the warnings of the poller and of the processor: a follower reports by them that it cannot
/// read, or cannot deliver an alert. The engine warns of every refused condition; those are left
/// out.
pub(crate) fn show_warnings() {
    let shown = ["sluicegate_local", "sluicegate_processor"];
    let shown: Targets = shown.into_iter().map(|target| (target, LevelFilter::WARN)).collect();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_filter(shown);
    let _ = tracing_subscriber::registry().with(lines).try_init();
}
