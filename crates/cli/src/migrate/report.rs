//! The report: converted buckets, skipped buckets and the reasons.

use std::io;

use serde::Serialize;
use sluicegate::types::BucketId;

use super::producers::OlderProducers;
use crate::options::Options;
use crate::output;

/// The most skipped buckets that are named: a table may have a million of them.
const NAMED_MAX: usize = 1_000;
/// The most that are shown to a person.
const SHOWN_MAX: usize = 20;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    table: String,
    dry_run: bool,
    /// Items that were read, of all kinds.
    pub(super) scanned_items: u64,
    pub(super) converted_buckets: u64,
    /// Items of one limit that these buckets had.
    pub(super) converted_limits: u64,
    /// Buckets that were converted after the scan found them: by a producer of this library, or by
    /// a transaction of this command that was not answered.
    pub(super) converted_elsewhere: u64,
    pub(super) skipped_buckets: u64,
    /// The first thousand of them.
    skipped: Vec<Skipped>,
    /// Read units of the scan.
    pub(super) read_units: f64,
    /// Write units of the conversions.
    pub(super) write_units: f64,
    pub(super) older_producers: Option<OlderProducers>,
}

/// A bucket that was not converted.
#[derive(Debug, Serialize)]
pub(super) struct Skipped {
    /// The whole partition key if the name cannot be read.
    pub(super) entity: String,
    /// The whole sort key if the name cannot be read.
    pub(super) resource: String,
    pub(super) reason: Reason,
    pub(super) detail: String,
}

/// The reason why a bucket was skipped.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    /// There is a composite bucket beside its items.
    Exists,
    /// Other producers kept writing its items.
    Changed,
    /// An item cannot be read.
    Broken,
    /// It does not fit in a transaction.
    TooManyLimits,
}

impl Reason {
    const fn advice(self) -> &'static str {
        match self {
            Self::Exists => {
                "beside a composite bucket, of a producer that does not convert: stop it, delete them"
            }
            Self::Changed => "still being written: stop the older producers, run this again",
            Self::Broken => "an item cannot be read: repair or delete it, run this again",
            Self::TooManyLimits => "too many limits: delete some, run this again",
        }
    }
}

impl Skipped {
    pub(super) fn of(bucket: &BucketId, reason: Reason, detail: String) -> Self {
        let (entity, resource) = (bucket.entity.to_string(), bucket.resource.to_string());
        Self { entity, resource, reason, detail }
    }

    fn why(&self) -> String {
        let advice = self.reason.advice();
        match self.detail.as_str() {
            "" => advice.to_owned(),
            detail => format!("{advice} ({detail})"),
        }
    }
}

impl Report {
    pub(super) fn new(table: &str, dry_run: bool) -> Self {
        Self {
            table: table.to_owned(),
            dry_run,
            scanned_items: 0,
            converted_buckets: 0,
            converted_limits: 0,
            converted_elsewhere: 0,
            skipped_buckets: 0,
            skipped: Vec::new(),
            read_units: 0.0,
            write_units: 0.0,
            older_producers: None,
        }
    }

    pub(super) fn skip(&mut self, skipped: Skipped) {
        self.skipped_buckets += 1;
        if self.skipped.len() < NAMED_MAX {
            self.skipped.push(skipped);
        }
    }

    /// True if every bucket of the table is now a composite one.
    pub(super) const fn is_complete(&self) -> bool {
        !self.dry_run && self.skipped_buckets == 0
    }

    /// The number of converted buckets, in a few words.
    pub(super) fn converted(&self) -> String {
        let did = if self.dry_run { "to convert" } else { "converted" };
        format!("{} {did}", counted(self.converted_buckets, "bucket"))
    }

    /// The work done so far, for a run that ended early.
    pub(super) fn so_far(&self) -> String {
        format!("{} of {} items", self.converted(), self.scanned_items)
    }

    pub(super) fn print(&self, options: &Options) -> io::Result<()> {
        if options.is_json() {
            return output::json(self);
        }
        output::line(&self.shown())
    }

    fn shown(&self) -> String {
        let mut lines = vec![format!(
            "{} with {} in table {}, of {} scanned; {:.0} read units, {:.0} write units",
            self.converted(),
            counted(self.converted_limits, "limit"),
            self.table,
            counted(self.scanned_items, "item"),
            self.read_units,
            self.write_units,
        )];
        if self.converted_elsewhere > 0 {
            let elsewhere = counted(self.converted_elsewhere, "bucket");
            lines.push(format!("{elsewhere} found to be converted already"));
        }
        if self.skipped_buckets > 0 {
            lines.push(format!("{} skipped:", counted(self.skipped_buckets, "bucket")));
            let some = self.skipped.iter().take(SHOWN_MAX);
            let rows = some.map(|one| vec![one.entity.clone(), one.resource.clone(), one.why()]);
            lines.push(output::table(&["entity", "resource", "why"], rows, &[]));
            let more = self.skipped_buckets.saturating_sub(SHOWN_MAX as u64);
            if more > 0 {
                lines.push(format!("and {more} more; --output json names {NAMED_MAX}"));
            }
        }
        lines.join("\n")
    }
}

fn counted(n: u64, what: &str) -> String {
    output::counted(usize::try_from(n).unwrap_or(usize::MAX), what)
}
