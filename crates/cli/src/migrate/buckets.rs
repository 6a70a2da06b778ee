//! The conversion: segments of the table concurrently, in each a few buckets at a time.

use std::cell::RefCell;
use std::pin::pin;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use sluicegate::dynamo::DynamoTable;
use sluicegate::dynamo::{ConvertError, Converted, LegacyPage, Reader, Segment};
use sluicegate::error::SetupError;
use sluicegate::store::TableError;
use sluicegate::types::BucketId;
use sluicegate_processor::chain;
use tokio::time::Instant;

use super::producers::OlderProducers;
use super::progress::Progress;
use super::report::{Reason, Report, Skipped};
use crate::error::CliError;

/// Buckets of one segment that are converted at once.
const AT_ONCE: usize = 4;
/// The most repetitions for a bucket that other producers keep writing; each is three transactions.
const CHANGES_MAX: u32 = 5;
/// The time that a table may throttle, or not answer, before the command ends.
const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) struct Conversions {
    table: DynamoTable,
    reader: Reader,
    dry_run: bool,
    state: RefCell<State>,
}

struct State {
    report: Report,
    progress: Progress,
}

impl Conversions {
    pub(super) fn new(
        table: DynamoTable,
        reader: Reader,
        progress: Progress,
        dry_run: bool,
    ) -> Self {
        let report = Report::new(table.name(), dry_run);
        Self { table, reader, dry_run, state: RefCell::new(State { report, progress }) }
    }

    /// Goes through the whole table.
    pub(super) async fn run(&mut self, segments: u16) -> Result<(), CliError> {
        let this = &*self;
        stream::iter(0..segments)
            .map(|number| this.segment(Segment { number, of: segments }))
            .buffer_unordered(usize::from(segments))
            .try_collect()
            .await
    }

    /// The report of the work.
    pub(super) fn finish(self, older: OlderProducers) -> Report {
        let State { mut report, progress } = self.state.into_inner();
        progress.finish();
        report.older_producers = Some(older);
        report
    }

    async fn segment(&self, segment: Segment) -> Result<(), CliError> {
        let mut pages = pin!(self.reader.legacy_buckets(segment));
        while let Some(page) = pages.try_next().await? {
            self.page(page).await?;
        }
        Ok(())
    }

    async fn page(&self, page: LegacyPage) -> Result<(), CliError> {
        self.note(|report| report.read_units += page.read_units, 0);
        for broken in page.broken {
            let skipped = Skipped {
                entity: broken.pk.clone(),
                resource: broken.sk.clone(),
                reason: Reason::Broken,
                detail: chain(&broken),
            };
            self.note(|report| report.skip(skipped), 0);
        }
        // Conversions are the slow part, so progress is counted with them, not with the scan ahead.
        let share = page.scanned / (page.buckets.len() as u64 + 1);
        let rest = page.scanned - share * page.buckets.len() as u64;
        let mut converted =
            stream::iter(page.buckets).map(|bucket| self.bucket(bucket)).buffer_unordered(AT_ONCE);
        while let Some(note) = converted.next().await {
            self.note(note?, share);
        }
        self.note(|_| {}, rest);
        Ok(())
    }

    /// Adds to the report, and shows it.
    fn note(&self, note: impl FnOnce(&mut Report), items: u64) {
        let State { report, progress } = &mut *self.state.borrow_mut();
        note(report);
        report.scanned_items += items;
        progress.show(report);
    }

    /// Converts one bucket; returns the change of the report.
    async fn bucket(&self, bucket: BucketId) -> Result<impl FnOnce(&mut Report) + use<>, CliError> {
        let outcome = self.outcome(&bucket).await?;
        Ok(move |report: &mut Report| match outcome {
            Ok(Converted::Nothing) => report.converted_elsewhere += 1,
            Ok(Converted::Done { composite, write_units }) => {
                report.converted_buckets += 1;
                report.converted_limits += composite.limits.len() as u64;
                report.write_units += write_units;
            }
            Ok(Converted::Exists { .. }) => {
                report.skip(Skipped::of(&bucket, Reason::Exists, String::new()));
            }
            Err((reason, detail)) => report.skip(Skipped::of(&bucket, reason, detail)),
        })
    }

    async fn outcome(
        &self,
        bucket: &BucketId,
    ) -> Result<Result<Converted, (Reason, String)>, CliError> {
        let (began, mut changes, mut pause) = (Instant::now(), 0, FIRST_PAUSE);
        loop {
            let converted = if self.dry_run {
                self.table.would_convert(bucket).await
            } else {
                self.table.convert(bucket).await
            };
            match converted {
                Ok(converted) => return Ok(Ok(converted)),
                Err(ConvertError::Changed | ConvertError::TableError(TableError::Conflict)) => {
                    changes += 1;
                    if changes > CHANGES_MAX {
                        return Ok(Err((Reason::Changed, format!("{changes} times in a row"))));
                    }
                }
                Err(ConvertError::TableError(table_error)) => match table_error {
                    TableError::Setup(broken @ SetupError::BrokenItem { .. }) => {
                        return Ok(Err((Reason::Broken, chain(&broken))));
                    }
                    TableError::Setup(setup) => return Err(setup.into()),
                    table_error if began.elapsed() > PATIENCE => return Err(table_error.into()),
                    _ => {}
                },
                Err(error @ ConvertError::TooManyLimits { .. }) => {
                    return Ok(Err((Reason::TooManyLimits, chain(&error))));
                }
                Err(error) => {
                    return Ok(Err((Reason::Broken, chain(&error))));
                }
            }
            tokio::time::sleep(pause.mul_f64(fastrand::f64())).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
