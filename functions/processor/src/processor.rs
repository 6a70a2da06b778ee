//! Processes one event: reads its records and writes their windows.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Region;
use futures_util::{Stream, StreamExt, stream};
use serde_json::value::RawValue;
use sluicegate_core::{Batch, EpochMillis, GroupedBatch, RecordDeltas, group_by_window};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::alert_claims::AlertClaims;
use crate::alert_partition::AlertPartition;
use crate::destination::Destination;
use crate::new_quarantine_entry::NewQuarantineEntry;
use crate::outbox::{self, Deliveries, Outbox};
use crate::outcome::Outcome;
use crate::outcome_builder::{OutcomeBuilder, as_u64};
use crate::quarantine;
use crate::report::Report;
use crate::sender::Sender;
use crate::settings::{Settings, Switch};
use crate::window_writer::{WindowResult, WindowWriter};
use crate::write_error::WriteError;

/// Windows written at once (and as many quarantine entries and claims beside them): enough to hide
/// the latency of a batch of a hundred windows, few enough not to throttle a fresh on-demand table
/// or to need many connections.
const WRITES_AT_ONCE: usize = 16;
/// The most time that a read of the waiting alerts may take after a batch. It delays the answer
/// to Lambda.
const READ_TIME: Duration = Duration::from_secs(2);

/// Counts the records of stream events in usage windows; cheap to clone.
#[derive(Debug, Clone)]
pub struct Processor {
    client: Client,
    settings: Settings,
    alert_partition: AlertPartition,
    outbox: Option<Arc<Outbox>>,
}

impl Processor {
    /// A processor that writes to the table of `settings` through `client`.
    #[must_use]
    pub fn new(client: Client, settings: Settings) -> Self {
        Self { client, settings, alert_partition: AlertPartition::default(), outbox: None }
    }

    /// Switches alerts on. The processor delivers each alert at least once: right after its batch,
    /// or after a later batch if that delivery failed or had no time left. `config` gives the
    /// credentials for a destination on AWS; the region comes from the destination's ARN.
    #[must_use]
    pub fn delivering_to(mut self, destination: Destination, config: &SdkConfig) -> Self {
        self.settings.alerts = Switch::On;
        self.outbox = Some(Arc::new(Outbox::new(Sender::new(destination, config))));
        self
    }

    /// Delivers the alerts that are due, without a batch. If the last read of the waiting alerts is
    /// a minute old, it first reads them again. It also does so, without waiting for that minute,
    /// if the last read left some out and everything that it found is delivered or given up.
    /// Without a destination, or if another region counts the table, it does nothing.
    ///
    /// # Errors
    /// The reason why the table could not be read, in one line.
    pub async fn deliver_alerts(&self, deadline: Instant) -> Result<Deliveries, String> {
        self.read_alerts(deadline).await?;
        Ok(self.deliver_known_alerts(deadline).await)
    }

    /// Reads the waiting alerts of the outbox if they are due to be read
    /// ([`deliver_alerts`](Self::deliver_alerts)).
    async fn read_alerts(&self, deadline: Instant) -> Result<(), String> {
        let Some(outbox) = self.outbox.as_deref().filter(|_| !self.is_counted_elsewhere()) else {
            return Ok(());
        };
        let (client, settings) = (&self.client, &self.settings);
        let read = self.alert_partition.refresh(client, settings, Some(outbox), deadline).await;
        read.map(drop).map_err(WriteError::reason)
    }

    async fn deliver_known_alerts(&self, deadline: Instant) -> Deliveries {
        match self.outbox.as_deref().filter(|_| !self.is_counted_elsewhere()) {
            Some(outbox) => outbox.deliver(&self.client, &self.settings.table, deadline).await,
            None => Deliveries::default(),
        }
    }

    /// True if alerts wait for their delivery, as far as this processor knows.
    #[must_use]
    pub fn has_waiting_alerts(&self) -> bool {
        self.outbox.as_ref().is_some_and(|outbox| outbox.has_waiting())
    }

    /// The settings of this processor.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// True if another region counts this table. Then this processor leaves every record alone.
    #[must_use]
    pub fn is_counted_elsewhere(&self) -> bool {
        let here = self.client.config().region().map(Region::as_ref);
        self.settings.home_region.as_deref().is_some_and(|home| Some(home) != here)
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Counts the records of one event. Writes are repeated until `deadline`; writes that are not
    /// done by then are reported in the outcome's response. Then it delivers the alerts that are
    /// due. An event without records, which a schedule sends, first reads the waiting alerts from
    /// the table, as [`deliver_alerts`](Self::deliver_alerts) does. If another region counts the
    /// table, no record is reported as failed, and no alert is delivered.
    pub async fn handle(&self, records: &[Box<RawValue>], deadline: Instant) -> Outcome {
        if self.is_counted_elsewhere() {
            let report = Report { records: as_u64(records.len()), ..Report::default() };
            return OutcomeBuilder::new(report).into_outcome(records);
        }
        let batch = Batch::read(records, self.settings.layouts);
        let now = outbox::now();
        let deltas = batch.countable.iter().map(|record| record.deltas.len()).sum();
        let mut outcome = OutcomeBuilder::new(Report {
            records: as_u64(records.len()),
            deltas: as_u64(deltas),
            record_age_ms: batch.oldest.map(age_ms),
            ..Report::default()
        });
        let entries: &Vec<_> =
            &batch.uncountable.iter().map(NewQuarantineEntry::of_record).collect();
        // Records behind an uncountable one are written last: when it is in quarantine, and the
        // records before it are counted. Otherwise a watermark could pass a record that is neither
        // counted nor in quarantine. When that record is delivered again, its windows would drop it
        // as a duplicate, even if a later version of the processor could count it.
        let (behind, unblocked): (Vec<_>, Vec<_>) = batch
            .countable
            .into_iter()
            .partition(|record| entries.iter().any(|entry| entry.may_precede(record)));
        let puts = (0..entries.len()).map(|n| async move {
            (n, quarantine::put(&self.client, &self.settings, &entries[n], deadline).await)
        });
        let (put, (grouped, results)) =
            tokio::join!(bounded(puts), self.write_windows(unblocked, now, deadline));
        let is_written = results.iter().all(|result| result.failure.is_none());
        outcome.add_windows((grouped, results));
        let mut failed = Vec::new();
        for (entry, result) in entries.iter().zip(put) {
            failed.extend(result.is_err().then_some(entry));
            outcome.add_entry(entry, result);
        }
        // A record is left out here because of a failure: of a window of `unblocked`, or of an
        // entry that may come before the record. Lambda delivers the record again:
        //
        // - In a batch in the order of one stream, the record comes after that failure. Lambda
        //   starts at the position of the failure or before it.
        // - In any other batch, Lambda starts at the first record.
        // - If there is no position to report, the whole batch comes again.
        let ready = behind
            .into_iter()
            .filter(|record| is_written && !failed.iter().any(|entry| entry.may_precede(record)));
        outcome.add_windows(self.write_windows(ready.collect(), now, deadline).await);
        if records.is_empty() {
            match self.deliver_alerts(deadline).await {
                Ok(deliveries) => outcome.add_deliveries(deliveries),
                Err(reason) => outcome.alerts_not_read(reason),
            }
        } else if self.has_waiting_alerts() {
            // The records are counted: the answer must not wait for long.
            let read = self.read_alerts(deadline.min(Instant::now() + READ_TIME)).await;
            if let Err(reason) = read {
                tracing::warn!(reason, "the alerts that wait could not be read again");
            }
            outcome.add_deliveries(self.deliver_known_alerts(deadline).await);
        }
        outcome.into_outcome(records)
    }

    async fn write_windows<'a>(
        &self,
        records: Vec<RecordDeltas<'a>>,
        now: EpochMillis,
        deadline: Instant,
    ) -> (GroupedBatch<'a>, Vec<WindowResult>) {
        let grouped = group_by_window(records, &self.settings.window_kinds);
        // The closures take an index. If they took a reference, the compiler could not show that
        // this future is `Send`.
        let writer = &|n: usize| WindowWriter {
            client: &self.client,
            settings: &self.settings,
            group: &grouped.groups[n],
            now_s: now.get() / 1_000,
            deadline,
        };
        let slots = &Semaphore::new(WRITES_AT_ONCE);
        let claims = &|n: usize| AlertClaims {
            client: &self.client,
            settings: &self.settings,
            alert_partition: &self.alert_partition,
            outbox: self.outbox.as_deref(),
            group: &grouped.groups[n],
            slots,
            now,
            deadline,
        };
        let writes = (0..grouped.groups.len()).map(|n| async move { (n, writer(n).write().await) });
        // A claim begins when its window is written. The number of claims that wait has no bound:
        // while thresholds cannot be read, all of them wait, and no window may wait behind them.
        let written = stream::iter(writes)
            .buffer_unordered(WRITES_AT_ONCE)
            .map(|(n, result)| async move { (n, claims(n).claim(result).await) })
            .buffer_unordered(usize::MAX);
        let written = in_order(written).await;
        (grouped, written)
    }
}

/// Runs numbered futures, at most [`WRITES_AT_ONCE`] at a time; the results are in the order of the
/// numbers. A slow future does not hold up the next ones while one of these slots is free.
async fn bounded<T>(futures: impl Iterator<Item = impl Future<Output = (usize, T)>>) -> Vec<T> {
    in_order(stream::iter(futures).buffer_unordered(WRITES_AT_ONCE)).await
}

/// Numbered results in the order of their numbers.
async fn in_order<T>(results: impl Stream<Item = (usize, T)>) -> Vec<T> {
    let mut results: Vec<_> = results.collect().await;
    results.sort_unstable_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, result)| result).collect()
}

fn age_ms(created: EpochMillis) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let created = Duration::from_millis(created.get().unsigned_abs());
    now.saturating_sub(created).as_secs_f64() * 1_000.0
}
