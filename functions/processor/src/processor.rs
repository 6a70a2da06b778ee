//! One event from records to written windows.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use futures_util::{StreamExt, stream};
use serde_json::value::RawValue;
use sluicegate_core::{Batch, EpochMillis, WindowFold, fold};
use tokio::time::Instant;

use crate::quarantine::{self, Entry, Texts};
use crate::report::{Outcome, Report};
use crate::settings::Settings;
use crate::store::{Refusal, epoch_s};
use crate::tally::{Tally, count};
use crate::usage::Window;

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

/// A failure that no position can report: the whole event must be delivered again.
#[derive(Debug, thiserror::Error)]
pub enum HandleError {
    /// A record without a readable position could not be put into quarantine.
    #[error(
        "a record without a sequence number is not safe yet, so the whole batch is to be retried: {reason}"
    )]
    Unidentified {
        /// What DynamoDB answered.
        reason: String,
    },
}

impl Processor {
    /// A processor that writes to the table of `settings` through `client`.
    #[must_use]
    pub const fn new(client: Client, settings: Settings) -> Self {
        Self { client, settings }
    }

    /// The settings it was made with.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Counts the records of one event. Writes are repeated until `deadline`; what could not be
    /// written by then is reported in the outcome's response.
    ///
    /// # Errors
    /// [`HandleError`] when a failure concerns a record that has no position to report.
    pub async fn handle(
        &self,
        records: &[Box<RawValue>],
        deadline: Instant,
    ) -> Result<Outcome, HandleError> {
        let batch = Batch::read(records);
        let odd: Vec<Entry> = batch.odd.iter().map(Entry::of_record).collect();
        let deltas = batch.counted.iter().map(|record| record.deltas.len()).sum();
        let folded = fold(batch.counted, &self.settings.windows);
        let texts = Texts::new(records);
        let mut tally = Tally::new(Report {
            records: count(records.len()),
            deltas: count(deltas),
            duplicates_dropped: count(folded.duplicates),
            record_age_ms: batch.oldest.map(age_ms),
            ..Report::default()
        });
        // By index: a closure over references would keep this future from being `Send` for callers.
        let entries = (0..odd.len()).map(|n| self.keep(&odd[n], deadline));
        let windows = (0..folded.windows.len())
            .map(|n| self.window(&folded.windows[n], &texts, deadline).settle());
        let (kept, settled) = tokio::join!(bounded(entries), bounded(windows));
        for (entry, result) in odd.iter().zip(kept) {
            tally.entry(entry, result);
        }
        for (fold, settled) in folded.windows.iter().zip(settled) {
            tally.window(fold, settled);
        }
        tally.into_outcome(records)
    }

    async fn keep(&self, entry: &Entry, deadline: Instant) -> Result<(bool, f64), Refusal> {
        quarantine::put(&self.client, &self.settings, entry, deadline).await
    }

    const fn window<'a>(
        &'a self,
        fold: &'a WindowFold,
        texts: &'a Texts<'a>,
        deadline: Instant,
    ) -> Window<'a> {
        Window { client: &self.client, settings: &self.settings, fold, texts, deadline }
    }
}

/// Runs futures at most [`WRITES_AT_ONCE`] at a time; the results are in their order.
async fn bounded<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    stream::iter(futures).buffered(WRITES_AT_ONCE).collect().await
}

fn age_ms(created: EpochMillis) -> f64 {
    let created = Duration::from_millis(created.get().unsigned_abs());
    let now = Duration::from_secs(epoch_s().unsigned_abs());
    now.saturating_sub(created).as_secs_f64() * 1_000.0
}
