//! The status of one budget, as it is shown.

use serde::Serialize;
use sluicegate::dynamo;
use sluicegate_core::{EpochMillis, rfc3339_s};

use crate::status::LimitRow;

#[derive(Debug, Serialize)]
pub(super) struct BudgetStatus {
    pub(super) entity: String,
    pub(super) resource: String,
    pub(super) limit: String,
    /// The limit in the form of `--limit`.
    pub(super) rule: String,
    /// The start of the period, RFC 3339; none: the limit has no calendar.
    period_start: Option<String>,
    /// Taken from the budget and not given back. A debt from the last period counts, too.
    pub(super) granted_milli: i64,
    pub(super) left_milli: i64,
    /// The sum of the usage windows of the period; none: there are no such windows, or
    /// one is broken.
    pub(super) used_milli: Option<i128>,
    /// Granted less used.
    pub(super) difference_milli: Option<i128>,
    /// The next boundary, or the time when the bucket is full; none: never.
    pub(super) resets_in_ms: Option<u64>,
    resets_at: Option<String>,
    pub(super) lasts: Lasts,
}

/// The time for which a budget lasts at the pace of the last days.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Lasts {
    /// Nothing was used, or there are no windows to tell, or one is broken.
    Unknown,
    /// Longer than the period.
    UntilReset,
    Until {
        at: String,
        milli_per_day: i128,
    },
}

impl BudgetStatus {
    pub(super) fn of(row: &LimitRow, budget: &dynamo::Budget, now: EpochMillis) -> Self {
        let granted = budget.granted_milli;
        Self {
            entity: row.entity.clone(),
            resource: row.resource.clone(),
            limit: row.limit.clone(),
            rule: row.rule.clone(),
            period_start: budget.period_start.map(text),
            granted_milli: granted,
            left_milli: row.found.available.get(),
            used_milli: budget.used_milli,
            difference_milli: budget.used_milli.map(|used| i128::from(granted) - used),
            resets_in_ms: budget.resets_in_ms,
            resets_at: budget.resets_at(now).map(text),
            lasts: match budget.lasts {
                dynamo::Lasts::Unknown => Lasts::Unknown,
                dynamo::Lasts::UntilReset => Lasts::UntilReset,
                dynamo::Lasts::Until { at, milli_per_day } => {
                    Lasts::Until { at: text(at), milli_per_day }
                }
            },
        }
    }
}

fn text(at: EpochMillis) -> String {
    rfc3339_s(at.get() / 1_000)
}
