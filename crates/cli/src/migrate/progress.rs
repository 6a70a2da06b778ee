//! Shows the progress: a bar on a terminal, a line now and then for a log.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::report::Report;
use crate::error::{PROGRESS_INTERVAL, say};
use crate::output;

pub(super) struct Progress {
    /// `None` without a terminal.
    bar: Option<ProgressBar>,
    /// Items of the table, roughly.
    items: u64,
    began: Instant,
    told: Instant,
}

impl Progress {
    /// The progress over a table with about so many items.
    pub(super) fn over(items: u64) -> Self {
        let began = Instant::now();
        let template = "{wide_bar} {human_pos} of about {human_len} items, {msg}, {eta} left";
        let bar = std::io::stderr().is_terminal().then(|| output::bar(items, template));
        Self { bar, items, began, told: began }
    }

    pub(super) fn show(&mut self, report: &Report) {
        let scanned = report.scanned_items;
        if let Some(bar) = &self.bar {
            bar.set_length(self.items.max(scanned));
            bar.set_position(scanned);
            let rate = rate(scanned, self.began.elapsed());
            bar.set_message(format!("{}, {rate} items/s", report.converted()));
        } else if self.told.elapsed() >= PROGRESS_INTERVAL {
            self.told = Instant::now();
            say(&line(scanned, self.items, self.began.elapsed(), &report.converted()));
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn rate(scanned: u64, elapsed: Duration) -> u64 {
    scanned / elapsed.as_secs().max(1)
}

fn line(scanned: u64, items: u64, elapsed: Duration, converted: &str) -> String {
    let rate = rate(scanned, elapsed);
    let left = match items.saturating_sub(scanned) {
        0 => String::new(),
        left => {
            let millis = left.saturating_mul(1_000).checked_div(rate);
            millis.map_or_else(String::new, |ms| format!(", {} left", output::duration(ms)))
        }
    };
    format!("{scanned} of about {items} items, {converted}, {rate} items/s{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_rate_and_the_time_left() {
        let of = |scanned, items, seconds| {
            line(scanned, items, Duration::from_secs(seconds), "7 buckets converted")
        };
        assert_eq!(
            of(1_000, 5_000, 10),
            "1000 of about 5000 items, 7 buckets converted, 100 items/s, 40 s left"
        );
        // DynamoDB counts every six hours.
        assert_eq!(of(30, 0, 10), "30 of about 0 items, 7 buckets converted, 3 items/s");
        assert_eq!(of(0, 50, 0), "0 of about 50 items, 7 buckets converted, 0 items/s");
    }
}
