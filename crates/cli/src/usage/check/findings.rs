//! The findings of a check, and their output.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;
use sluicegate::types::{LimitName, UsageWindow};
use sluicegate_core::QuarantineState;

use crate::connection::Connection;
use crate::error::{CliError, exit, say};
use crate::options::Options;
use crate::output::{self, counted};
use crate::readable::readable;

/// The note about figures that were not checked.
const UNCERTAIN: &str = "uncertain: figures that were not checked may be incomplete; hours and \
    days that agree may both lack a record that the stream no longer has, so check within a day \
    of the traffic";

#[derive(Debug, Default, Serialize)]
pub(super) struct Findings {
    /// Comparisons without a difference.
    pub(super) agree: usize,
    pub(super) differ: Vec<Finding>,
    /// Figures that could not be checked, with the reasons.
    pub(super) unchecked: Vec<Finding>,
}

#[derive(Debug, Serialize)]
pub(super) struct Finding {
    /// The window, bucket or kind of check.
    pub(super) of: String,
    pub(super) what: String,
}

/// The compared figures: millitokens by limit, and the number of their records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) consumed_milli: BTreeMap<LimitName, i128>,
    pub(super) events: u64,
}

impl Figures {
    pub(super) fn add(&mut self, other: &Self) {
        for (limit, milli) in &other.consumed_milli {
            *self.consumed_milli.entry(limit.clone()).or_default() += milli;
        }
        self.events += other.events;
    }

    /// The limits with different sums, with both sums: `rpm 10 and 9`. A missing limit counts as
    /// zero.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let mut limits: Vec<_> =
            self.consumed_milli.keys().chain(other.consumed_milli.keys()).collect();
        limits.sort();
        limits.dedup();
        let of = |figures: &Self, limit| figures.consumed_milli.get(limit).copied().unwrap_or(0);
        let mut differences = Vec::new();
        for limit in limits {
            let (mine, theirs) = (of(self, limit), of(other, limit));
            if mine != theirs {
                let (mine, theirs) = (limit.show(mine), limit.show(theirs));
                differences.push(format!("{limit} {mine} and {theirs}"));
            }
        }
        if self.events != other.events {
            differences.push(format!("records {} and {}", self.events, other.events));
        }
        differences
    }
}

impl From<&UsageWindow> for Figures {
    fn from(usage: &UsageWindow) -> Self {
        Self { consumed_milli: usage.consumed_milli.clone(), events: usage.events }
    }
}

impl Findings {
    pub(super) fn differs(&mut self, of: impl Into<String>, what: impl Into<String>) {
        self.differ.push(Finding { of: of.into(), what: what.into() });
    }

    /// Notes windows that cannot be read.
    pub(super) fn broken(&mut self, windows: usize) {
        if windows > 0 {
            let what =
                format!("{} cannot be read; repair or delete them", counted(windows, "item"));
            self.differs("hours and days", what);
        }
    }

    pub(super) fn unchecked(&mut self, of: impl Into<String>, why: impl Into<String>) {
        self.unchecked.push(Finding { of: of.into(), what: why.into() });
    }

    pub(super) fn append(&mut self, other: Self) {
        self.agree += other.agree;
        self.differ.extend(other.differ);
        self.unchecked.extend(other.unchecked);
    }

    pub(super) async fn print(
        &self,
        connection: &Connection,
        options: &Options,
    ) -> Result<ExitCode, CliError> {
        if options.is_json() {
            output::json(self)?;
        } else {
            for Finding { of, what } in &self.differ {
                output::line(&format!("differs      {of}: {what}"))?;
            }
            for Finding { of, what } in &self.unchecked {
                output::line(&format!("not checked  {of}: {what}"))?;
            }
            let (agree, differ) = (counted(self.agree, "comparison"), self.differ.len());
            output::line(&format!("{agree} came out even, {differ} did not"))?;
            if !self.unchecked.is_empty() {
                output::line(UNCERTAIN)?;
            }
        }
        if !self.differ.is_empty() {
            let entries = readable(connection.reader().quarantine()).await?.items;
            let open = entries.iter().filter(|entry| entry.state == QuarantineState::Open).count();
            if open > 0 {
                say(&format!(
                    "{} in quarantine may be what is missing; look with `sluicegate quarantine list`",
                    counted(open, "record")
                ));
            }
        }
        let is_fine = self.differ.is_empty() && self.agree > 0;
        Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_not_there_is_zero() {
        let figures = |of: &[(&str, i128)], events| Figures {
            consumed_milli: of.iter().map(|(l, n)| (LimitName::new(l).unwrap(), *n)).collect(),
            events,
        };
        let a = figures(&[("rpm", 1_000), ("tpm", 0)], 2);
        assert_eq!(a.differences(&figures(&[("rpm", 1_000)], 2)), [""; 0]);
        let b = figures(&[("tpm", 500)], 3);
        assert_eq!(a.differences(&b), ["rpm 1 and 0", "tpm 0 and 0.5", "records 2 and 3"]);
    }
}
