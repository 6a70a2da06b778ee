//! Shows the progress of an export: a bar on a terminal, a line now and then for a log.

use std::time::Instant;

use indicatif::ProgressBar;

use crate::error::{PROGRESS_INTERVAL, say};
use crate::output::bar;

/// The days that are done, and the rows so far.
pub(super) struct Progress {
    /// Hidden without a terminal.
    bar: ProgressBar,
    rows: usize,
    told: Instant,
}

impl Progress {
    pub(super) fn over(days: usize) -> Self {
        let template = "{wide_bar} {human_pos} of {human_len} days, {msg} rows, {eta} left";
        let bar = bar(days.try_into().unwrap_or(u64::MAX), template);
        Self { bar, rows: 0, told: Instant::now() }
    }

    pub(super) fn row(&mut self) {
        self.rows += 1;
        // Shown a few times a second at the pace of DynamoDB.
        if self.rows.is_multiple_of(100) {
            self.bar.set_message(self.rows.to_string());
            self.tell();
        }
    }

    pub(super) fn day(&mut self) {
        self.bar.inc(1);
        self.tell();
    }

    fn tell(&mut self) {
        if self.bar.is_hidden() && self.told.elapsed() >= PROGRESS_INTERVAL {
            self.told = Instant::now();
            let (done, days) = (self.bar.position(), self.bar.length().unwrap_or(0));
            say(&format!("{done} of {days} days, {} rows", self.rows));
        }
    }

    /// The rows so far.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
