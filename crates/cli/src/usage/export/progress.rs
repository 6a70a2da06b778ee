//! Shows the progress of an export on a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// The days that are done, and the rows so far. Without a terminal nothing is shown.
pub(super) struct Progress {
    bar: ProgressBar,
    rows: usize,
}

impl Progress {
    pub(super) fn over(days: usize) -> Self {
        let bar = ProgressBar::new(days.try_into().unwrap_or(u64::MAX));
        let style = ProgressStyle::with_template(
            "{wide_bar} {human_pos} of {human_len} days, {msg} rows, {eta} left",
        );
        let bar = match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Self { bar, rows: 0 }
    }

    pub(super) fn row(&mut self) {
        self.rows += 1;
        // Shown a few times a second at the pace of DynamoDB.
        if self.rows.is_multiple_of(100) {
            self.bar.set_message(self.rows.to_string());
        }
    }

    pub(super) fn day(&self) {
        self.bar.inc(1);
    }

    /// Removes the bar; returns the number of rows.
    pub(super) fn finish(&self) -> usize {
        self.bar.finish_and_clear();
        self.rows
    }
}
