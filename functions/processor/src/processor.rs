//! Processes one event: reads its records and writes their windows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::Client;
use futures_util::{StreamExt, stream};
use serde_json::value::RawValue;
use sluicegate_core::{Batch, EpochMillis, fold};
use tokio::time::Instant;

use crate::entry::Entry;
use crate::outcome::{OutcomeBuilder, as_u64};
use crate::quarantine::{self, PutOutcome};
use crate::report::{Outcome, Report};
use crate::settings::Settings;
use crate::window_writer::WindowWriter;
use crate::write_error::WriteError;

/// Windows written at once (and as many quarantine entries beside them): enough to hide the latency
/// of a batch of a hundred windows, few enough not to throttle a fresh on-demand table or to need
/// many connections.
const WRITES_AT_ONCE: usize = 16;

/// Counts the records of stream events in usage windows; cheap to clone.
#[derive(Debug, Clone)]
pub struct Processor {
    client: Client,
    settings: Settings,
}

impl Processor {
    /// A processor that writes to the table of `settings` through `client`.
    #[must_use]
    pub const fn new(client: Client, settings: Settings) -> Self {
        Self { client, settings }
    }

    /// The settings of this processor.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Counts the records of one event. Writes are repeated until `deadline`; writes that are not
    /// done by then are reported in the outcome's response.
    pub async fn handle(&self, records: &[Box<RawValue>], deadline: Instant) -> Outcome {
        let batch = Batch::read(records);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let entries: Vec<Entry> = batch.malformed.iter().map(Entry::of_record).collect();
        let deltas = batch.deltas.iter().map(|record| record.deltas.len()).sum();
        let grouped = fold(batch.deltas, &self.settings.windows);
        let mut outcome = OutcomeBuilder::new(Report {
            records: as_u64(records.len()),
            deltas: as_u64(deltas),
            duplicates_dropped: as_u64(grouped.duplicates),
            record_age_ms: batch.oldest.map(|created| age_ms(now, created)),
            ..Report::default()
        });
        // By index: a closure over references would make this future not `Send` for callers.
        let entries = &entries;
        let puts = (0..entries.len())
            .map(|n| async move { (n, self.quarantine(&entries[n], deadline).await) });
        let writer = &|n: usize| WindowWriter {
            client: &self.client,
            settings: &self.settings,
            fold: &grouped.windows[n],
            now_s: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            deadline,
        };
        let writes =
            (0..grouped.windows.len()).map(|n| async move { (n, writer(n).write().await) });
        let (put, written) = tokio::join!(bounded(puts), bounded(writes));
        for (entry, result) in entries.iter().zip(put) {
            outcome.add_entry(entry, result);
        }
        for (fold, result) in grouped.windows.iter().zip(written) {
            outcome.add_window(fold, result);
        }
        outcome.into_outcome(records)
    }

    async fn quarantine(&self, entry: &Entry, deadline: Instant) -> Result<PutOutcome, WriteError> {
        quarantine::put(&self.client, &self.settings, entry, deadline).await
    }
}

/// Runs numbered futures, at most [`WRITES_AT_ONCE`] at a time; the results are in their order. A
/// future that has to wait takes one slot and does not delay those behind it.
async fn bounded<T>(futures: impl Iterator<Item = impl Future<Output = (usize, T)>>) -> Vec<T> {
    let mut results: Vec<_> =
        stream::iter(futures).buffer_unordered(WRITES_AT_ONCE).collect().await;
    results.sort_unstable_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, result)| result).collect()
}

fn age_ms(now: Duration, created: EpochMillis) -> f64 {
    let created = Duration::from_millis(created.get().unsigned_abs());
    now.saturating_sub(created).as_secs_f64() * 1_000.0
}
