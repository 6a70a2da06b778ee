//! The formats of an export. The same rows in the same order give the same bytes.

use std::io::{self, Write};

use serde::Serialize;

use super::super::csv::quoted;
use super::focus::Focus;
use super::row::{Row, RowWriter};

const HEADER: &str =
    "id,entity,resource,limit,window,start,end,amount,unit,events,cost,currency\r\n";

/// A format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// Comma-separated values (RFC 4180) with a header. Names are exact, also those that a
    /// spreadsheet takes for a formula.
    Csv,
    /// A JSON object a line.
    Jsonl,
    /// A CloudEvents 1.0 event in JSON a line.
    Cloudevents,
    /// Comma-separated values with the columns of FOCUS 1.2 that usage windows can fill.
    Focus,
    /// Apache Parquet, with amounts as decimals and times as timestamps.
    #[cfg(feature = "parquet")]
    Parquet,
}

impl Format {
    /// The extension of its files.
    pub(super) const fn extension(self) -> &'static str {
        match self {
            Self::Csv | Self::Focus => "csv",
            Self::Jsonl | Self::Cloudevents => "jsonl",
            #[cfg(feature = "parquet")]
            Self::Parquet => "parquet",
        }
    }

    /// Begins a file of rows from a table, the `source`, whose amounts have a cost if there are prices.
    pub(super) fn begin(
        self,
        mut out: Box<dyn Write + Send>,
        source: &str,
        has_prices: bool,
    ) -> io::Result<Box<dyn RowWriter>> {
        Ok(match self {
            Self::Csv => {
                out.write_all(HEADER.as_bytes())?;
                Box::new(Lines { out, line: csv_line })
            }
            Self::Jsonl => Box::new(Lines {
                out,
                line: |out: &mut dyn Write, row: &Row<'_>| json_line(out, row),
            }),
            Self::Cloudevents => {
                let source = source.to_owned();
                let line =
                    move |out: &mut dyn Write, row: &Row<'_>| json_line(out, &event(&source, row));
                Box::new(Lines { out, line })
            }
            Self::Focus => Box::new(Focus::new(out, has_prices)?),
            #[cfg(feature = "parquet")]
            Self::Parquet => Box::new(super::parquet::ParquetWriter::new(out)?),
        })
    }
}

/// Rows that a function writes, each as a line.
struct Lines<F> {
    out: Box<dyn Write + Send>,
    line: F,
}

impl<F: Fn(&mut dyn Write, &Row<'_>) -> io::Result<()> + Send> RowWriter for Lines<F> {
    fn write(&mut self, row: &Row<'_>) -> io::Result<()> {
        (self.line)(&mut *self.out, row)
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.out.flush()
    }
}

fn csv_line(out: &mut dyn Write, row: &Row<'_>) -> io::Result<()> {
    let [entity, resource, limit] = [row.entity, row.resource, row.limit].map(quoted);
    let Row { id, window, start, end, amount, unit, events, .. } = row;
    let (cost, currency) =
        (row.cost.as_deref().unwrap_or_default(), row.currency.unwrap_or_default());
    write!(
        out,
        "{id},{entity},{resource},{limit},{window},{start},{end},{amount},{unit},{events},{cost},{currency}\r\n"
    )
}

/// A CloudEvents 1.0 event. Receivers drop an event whose `source` and `id` they know.
#[derive(Serialize)]
struct Event<'a> {
    specversion: &'static str,
    id: &'a str,
    source: &'a str,
    r#type: &'static str,
    subject: &'a str,
    /// The start of the window: its end already belongs to the next period.
    time: &'a str,
    datacontenttype: &'static str,
    data: &'a Row<'a>,
}

fn event<'a>(source: &'a str, row: &'a Row<'_>) -> Event<'a> {
    Event {
        specversion: "1.0",
        id: &row.id,
        source,
        r#type: "sluicegate.usage.window",
        subject: row.entity,
        time: &row.start,
        datacontenttype: "application/json",
        data: row,
    }
}

fn json_line(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}
