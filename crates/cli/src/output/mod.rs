//! Prints results: tables for people, JSON for scripts.

pub(crate) mod windows;

use std::io::{self, Write};

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sluicegate_core::AmountOf;
use sluicegate_processor::one_line;

/// Longer than any name.
const CELL_CHARS: usize = 300;

/// A rule under the header, and no other lines.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Prints one JSON value, indented.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    exact(&serde_json::to_string_pretty(value)?)
}

/// Prints lines for a person: invisible characters of names are escaped.
pub(crate) fn line(text: &str) -> io::Result<()> {
    exact(&visible(text))
}

/// The lines of a text, with invisible characters escaped.
pub(crate) fn visible(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(|line| one_line(line, usize::MAX)).collect();
    lines.join("\n")
}

/// Prints a text for a program, unchanged. A closed pipe is no error: the reader has ended.
pub(crate) fn exact(text: &str) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Aligns rows under a header; the columns in `right` hold numbers.
pub(crate) fn table<S: AsRef<str>>(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<S>>,
    right: &[usize],
) -> String {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| one_line(cell.as_ref(), CELL_CHARS)));
    }
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// An amount of a limit for people: tokens like `0.5`, or money like `0.25 USD`.
pub(crate) fn amount(limit: &str, milli: impl Into<i128>) -> String {
    AmountOf::new(limit, milli.into()).to_string()
}

/// Millitokens as tokens, with as many decimals as needed: `1240`, `0.5`, `-3.025`.
pub(crate) fn tokens(milli: impl Into<i128>) -> String {
    amount("", milli)
}

/// A duration for people: `at once`, `850 ms`, `12.5 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`.
pub(crate) fn duration(millis: u64) -> String {
    let (seconds, minutes, hours) = (millis / 1_000, millis / 60_000, millis / 3_600_000);
    match millis {
        0 => "at once".to_owned(),
        1..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{} s", tokens(millis)),
        60_000..3_600_000 => two(minutes, "min", seconds % 60, "s"),
        3_600_000..86_400_000 => two(hours, "h", minutes % 60, "min"),
        _ => two(hours / 24, "d", hours % 24, "h"),
    }
}

fn two(major: u64, unit: &str, minor: u64, minor_unit: &str) -> String {
    if minor == 0 {
        format!("{major} {unit}")
    } else {
        format!("{major} {unit} {minor} {minor_unit}")
    }
}

/// `1 record`, `2 records`.
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A number with a comma between thousands: `-1,234,567.5`.
pub(crate) fn grouped(number: impl ToString) -> String {
    let number = number.to_string();
    let (sign, digits) = number.split_at(usize::from(number.starts_with('-')));
    let (whole, decimals) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let groups: Vec<_> = whole.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    format!("{sign}{}{decimals}", groups.join(","))
}

/// A bar of progress on standard error, hidden without a terminal.
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_as_many_decimals_as_there_are() {
        let cases = [
            (0, "0"),
            (1_240_000, "1240"),
            (500, "0.5"),
            (-3_025, "-3.025"),
            (-1, "-0.001"),
            (10, "0.01"),
        ];
        for (milli, shown) in cases {
            assert_eq!(tokens(milli), shown);
        }
    }

    #[test]
    fn thousands_are_told_apart() {
        let cases = [("0", "0"), ("999", "999"), ("1000", "1,000"), ("-1234567.5", "-1,234,567.5")];
        for (number, expected) in cases {
            assert_eq!(grouped(number), expected);
        }
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let cases = [
            (0, "at once"),
            (850, "850 ms"),
            (12_500, "12.5 s"),
            (60_000, "1 min"),
            (200_999, "3 min 20 s"),
            (7_500_000, "2 h 5 min"),
            (86_400_000 * 4 + 3_600_000 * 3, "4 d 3 h"),
        ];
        for (millis, shown) in cases {
            assert_eq!(duration(millis), shown);
        }
    }
}
