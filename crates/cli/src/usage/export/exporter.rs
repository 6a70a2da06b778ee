//! Reads the windows of each day and writes their rows.

use std::collections::BTreeMap;
use std::io::Write;
use std::pin::pin;

use futures_util::stream::{BoxStream, Stream, StreamExt};
use sluicegate::dynamo::ReadError;
use sluicegate::types::{LimitName, UsageWindow, WindowSpan};
use sluicegate_core::Money;
use sluicegate_prices::PriceBook;
use sluicegate_processor::chain;

use super::days::{Day, Days};
use super::format::Format;
use super::place::Place;
use super::progress::Progress;
use super::row::{Row, RowWriter};
use crate::error::{CliError, say};
use crate::output::counted;

/// The windows of a span, in the order of their rows.
pub(super) type Windows = BoxStream<'static, Result<UsageWindow, ReadError>>;

/// An export. At any time it holds one page of windows, and what its format buffers.
pub(super) struct Exporter<R> {
    pub(super) read: R,
    /// The name of the table in its events.
    pub(super) source: String,
    pub(super) format: Format,
    pub(super) days: Days,
    /// Windows that end later are left out.
    pub(super) closed_s: Option<i64>,
    pub(super) now_s: i64,
    pub(super) prices: Option<PriceBook>,
    pub(super) progress: Progress,
    pub(super) findings: Findings,
    /// The shortest time for which a window of this export is kept after its end.
    pub(super) kept_s: Option<i64>,
    /// The dates without windows, each with the end of its first window.
    pub(super) empty: Vec<(String, i64)>,
}

/// The reasons why a person must look.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Windows that could not be read.
    pub(super) broken: usize,
    /// Windows of one file or of standard output that were left out because they are not closed.
    pub(super) open: usize,
    /// Days whose first windows may have expired.
    pub(super) expired: usize,
    /// The reason for each resource with amounts that have no price.
    pub(super) unpriced: BTreeMap<String, String>,
}

/// The days of an export to a folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// Files that were written.
    pub(super) files: usize,
    /// Days that had their file already.
    pub(super) there: usize,
    /// Days that are not closed.
    pub(super) open: usize,
    /// Days with a window that could not be read, or that may have expired.
    pub(super) left_out: usize,
    /// The rows in the files.
    pub(super) rows: usize,
}

impl<R: Fn(&WindowSpan) -> Windows> Exporter<R> {
    /// Writes all days to one file.
    pub(super) async fn write_one(&mut self, out: Box<dyn Write + Send>) -> Result<(), CliError> {
        let mut writer = self.format.begin(out, &self.source, self.prices.is_some())?;
        for day in self.days.iter() {
            let copied = self.copy((self.read)(&day.span), writer.as_mut()).await?;
            if self.may_miss_windows(&day, &copied) {
                say(&format!("incomplete: {}, its first windows may have expired", day.date));
            }
            self.progress.day();
        }
        self.name_expired_days();
        Ok(writer.finish()?)
    }

    /// Writes each closed day that has no file yet. A day with a broken window is left out: once
    /// it is repaired, the next export writes the day. A day whose first windows may have expired is
    /// left out too: its file would look whole.
    pub(super) async fn write_folder(&mut self, folder: &Place) -> Result<Written, CliError> {
        let mut written = Written::default();
        for day in self.days.iter() {
            if self.closed_s.is_some_and(|closed_s| day.end_s > closed_s) {
                written.open += 1;
            } else if folder.has(&day.date).await? {
                written.there += 1;
            } else {
                let file = folder.begin()?;
                let mut writer =
                    self.format.begin(file.writer()?, &self.source, self.prices.is_some())?;
                let copied = self.copy((self.read)(&day.span), writer.as_mut()).await?;
                writer.finish()?;
                if copied.broken > 0 {
                    say(&format!("left out: {}, until all of its windows can be read", day.date));
                    written.left_out += 1;
                } else if self.may_miss_windows(&day, &copied) {
                    say(&format!(
                        "left out: {}, its first windows may have expired; --file exports the others",
                        day.date
                    ));
                    written.left_out += 1;
                } else if copied.rows > 0 {
                    folder.publish(file, &day.date).await?;
                    written.files += 1;
                    written.rows += copied.rows;
                }
            }
            self.progress.day();
        }
        self.name_expired_days();
        Ok(written)
    }

    /// True if the first windows of a day may have expired. The others say for how long windows are
    /// kept.
    fn may_miss_windows(&mut self, day: &Day, copied: &Copied) -> bool {
        self.kept_s = self.kept_s.into_iter().chain(copied.kept_s).min();
        let Some((first, _)) = day.span.ends() else { return false };
        if copied.windows == 0 {
            self.empty.push((day.date.clone(), first.end_s()));
        }
        let may_miss = self.has_expired(first.end_s(), copied.kept_s);
        self.findings.expired += usize::from(may_miss);
        may_miss
    }

    /// The dates without windows whose windows would have expired: they may have had usage.
    fn expired_days(&self) -> Vec<&str> {
        let expired = self.empty.iter().filter(|(_, end_s)| self.has_expired(*end_s, self.kept_s));
        expired.map(|(date, _)| date.as_str()).collect()
    }

    fn name_expired_days(&self) {
        let dates = self.expired_days();
        if let (Some(first), Some(last)) = (dates.first(), dates.last()) {
            let days = counted(dates.len(), "day");
            say(&format!(
                "no rows of {days} from {first} to {last}: their windows would have expired by now"
            ));
        }
    }

    /// True if a window that ended then is deleted by now.
    fn has_expired(&self, end_s: i64, kept_s: Option<i64>) -> bool {
        kept_s.is_some_and(|kept_s| end_s + kept_s <= self.now_s)
    }

    async fn copy(
        &mut self,
        windows: impl Stream<Item = Result<UsageWindow, ReadError>>,
        writer: &mut dyn RowWriter,
    ) -> Result<Copied, CliError> {
        let mut windows = pin!(windows);
        let mut copied = Copied::default();
        while let Some(window) = windows.next().await {
            let usage = match window {
                Ok(usage) => usage,
                Err(ReadError::Item(broken)) => {
                    say(&format!("left out: {}", chain(broken.as_ref())));
                    copied.windows += 1;
                    copied.broken += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            copied.windows += 1;
            let kept_s = usage.expires_at_s.map(|at_s| at_s - usage.window.end_s());
            copied.kept_s = kept_s.into_iter().chain(copied.kept_s).min();
            // A window that holds only a watermark has no figures.
            let is_open = self.closed_s.is_some_and(|closed_s| usage.window.end_s() > closed_s);
            if usage.events == 0 || is_open {
                self.findings.open += usize::from(is_open && usage.events > 0);
                continue;
            }
            for (limit, &milli) in &usage.consumed_milli {
                let cost = self.cost(&usage, limit, milli);
                writer.write(&Row::new(&usage, limit, milli, cost))?;
                copied.rows += 1;
                self.progress.row();
            }
        }
        self.findings.broken += copied.broken;
        Ok(copied)
    }

    /// The price of an amount when its window began.
    fn cost(&mut self, usage: &UsageWindow, limit: &LimitName, milli: i128) -> Option<Money> {
        let start = usage.window.start();
        let resource = usage.resource.as_str();
        let cost = self.prices.as_ref()?.cost_of_limit(resource, limit.as_str(), milli, start);
        cost.unwrap_or_else(|error| {
            let unpriced = &mut self.findings.unpriced;
            unpriced.entry(resource.to_owned()).or_insert_with(|| error.to_string());
            None
        })
    }
}

#[derive(Debug, Default)]
struct Copied {
    windows: usize,
    rows: usize,
    broken: usize,
    /// The shortest time for which a window is kept after its end; `None`: all are kept for ever.
    kept_s: Option<i64>,
}

#[cfg(test)]
#[path = "exporter_tests.rs"]
mod tests;
