//! The status of one budget: granted, left, used, and how long it lasts.

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;
use sluicegate::dynamo::Reader;
use sluicegate_core::{EpochMillis, UsageWindow, WindowKind, WindowSpan};

use crate::error::CliError;
use crate::readable::readable;
use crate::status::Standing;

const DAY_MS: i64 = 86_400_000;
/// Windows that may divide a period: those that are usual, and the finest.
const KINDS: [WindowKind; 3] = [WindowKind::Hour, WindowKind::DAY, WindowKind::Minute];
/// The pace is the use of this many days.
const PACE_DAYS: i64 = 7;

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
    /// The sum of the usage windows of the period; none: there are no such windows.
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
    /// Nothing was used, or there are no windows to tell.
    Unknown,
    /// Longer than the period.
    UntilReset,
    Until {
        at: String,
        milli_per_day: i128,
    },
}

impl BudgetStatus {
    pub(super) async fn of(
        reader: &Reader,
        standing: &Standing,
        now: EpochMillis,
    ) -> Result<Self, CliError> {
        let found = &standing.found;
        let (left, burst) = (found.available.get(), found.rule.burst().get());
        let period = found.rule.refill().calendar().map(|at| at.calendar.period(now));
        let used = match period {
            Some(period) => used_in_period(reader, standing, period.start, now).await?,
            None => None,
        };
        let resets_in_ms = match period {
            None => standing.full_in_ms,
            Some(period) => period.end.map(|end| (end.get() - now.get()).unsigned_abs()),
        };
        let resets_at = resets_in_ms
            .and_then(|millis| i64::try_from(millis).ok())
            .and_then(|millis| EpochMillis::new(now.get().checked_add(millis)?).ok());
        let pace = used_per_day(reader, standing, now).await?;
        let granted = burst - left;
        Ok(Self {
            entity: standing.entity.clone(),
            resource: standing.resource.clone(),
            limit: standing.limit.clone(),
            rule: standing.rule.clone(),
            period_start: period.map(|period| text(period.start)),
            granted_milli: granted,
            left_milli: left,
            used_milli: used,
            difference_milli: used.map(|used| i128::from(granted) - used),
            resets_in_ms,
            resets_at: resets_at.map(text),
            lasts: lasts(left, pace, now, resets_at),
        })
    }
}

/// The use of a period by its own window, or by the windows that divide it. `None`: there are none.
async fn used_in_period(
    reader: &Reader,
    standing: &Standing,
    start: EpochMillis,
    now: EpochMillis,
) -> Result<Option<i128>, CliError> {
    let own = standing.found.rule.refill().calendar().map(|at| at.calendar);
    let mut most = None;
    for kind in own.map(WindowKind::Calendar).into_iter().chain(KINDS) {
        if kind.containing(start).start_s() * 1_000 != start.get() {
            continue;
        }
        let windows = windows(reader, standing, kind, start, now).await?;
        // Windows of the start may have expired, and a kind that was switched on later shows less.
        let is_whole = windows.first().is_some_and(|first| {
            let kept_s = first.expires_at_s.map(|expires| expires - first.window.end_s());
            kept_s.is_none_or(|kept_s| start.get() / 1_000 + kept_s > now.get() / 1_000)
        });
        if is_whole {
            most = most.max(Some(sum(&windows, standing)));
        }
    }
    Ok(most)
}

/// Millitokens a day over the last days, or since the first use if that is later, but at least over
/// one day. `None`: there are no windows.
async fn used_per_day(
    reader: &Reader,
    standing: &Standing,
    now: EpochMillis,
) -> Result<Option<i128>, CliError> {
    let from = EpochMillis::new(now.get() - PACE_DAYS * DAY_MS).unwrap_or(EpochMillis::MIN);
    for kind in KINDS {
        let windows = windows(reader, standing, kind, from, now).await?;
        let Some(first) = windows.first() else { continue };
        let elapsed_ms = (now.get() - first.window.start_s() * 1_000).max(DAY_MS);
        return Ok(Some(sum(&windows, standing) * i128::from(DAY_MS) / i128::from(elapsed_ms)));
    }
    Ok(None)
}

async fn windows(
    reader: &Reader,
    standing: &Standing,
    kind: WindowKind,
    from: EpochMillis,
    now: EpochMillis,
) -> Result<Vec<UsageWindow>, CliError> {
    let bucket = &standing.bucket;
    let span = WindowSpan { kind, starts: from..now };
    let usage = reader.usage(&bucket.entity, &bucket.resource, &span);
    let mut windows = readable(usage).await?.items;
    windows.retain(|window| window.events > 0);
    Ok(windows)
}

fn sum(windows: &[UsageWindow], standing: &Standing) -> i128 {
    windows.iter().filter_map(|window| window.consumed_milli.get(&standing.found.limit)).sum()
}

fn lasts(
    left: i64,
    per_day: Option<i128>,
    now: EpochMillis,
    resets_at: Option<EpochMillis>,
) -> Lasts {
    let Some(per_day) = per_day.filter(|per_day| *per_day > 0) else { return Lasts::Unknown };
    let left_ms = i128::from(left.max(0)) * i128::from(DAY_MS) / per_day;
    let until = i64::try_from(i128::from(now.get()) + left_ms).ok();
    match until.and_then(|until| EpochMillis::new(until).ok()) {
        Some(until) if resets_at.is_none_or(|resets_at| until < resets_at) => {
            Lasts::Until { at: text(until), milli_per_day: per_day }
        }
        _ => Lasts::UntilReset,
    }
}

fn text(at: EpochMillis) -> String {
    let at = DateTime::from_timestamp_millis(at.get()).unwrap_or_default();
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::fixtures::at;

    #[test]
    fn budget_lasts_until_its_pace_uses_it_up() {
        // 2026-11-23T00:00:00Z.
        let now = at(1_795_392_000_000);
        let resets_at = Some(at(now.get() + 8 * DAY_MS));
        let until =
            |day: &str| Lasts::Until { at: format!("2026-{day}T00:00:00Z"), milli_per_day: 100 };
        for (left, per_day, resets_at, expected) in [
            (300, Some(100), resets_at, until("11-26")),
            (-5, Some(100), resets_at, until("11-23")),
            (800, Some(100), resets_at, Lasts::UntilReset),
            (800, Some(100), None, until("12-01")),
            (300, Some(0), resets_at, Lasts::Unknown),
            (300, Some(-7), resets_at, Lasts::Unknown),
            (300, None, resets_at, Lasts::Unknown),
            (i64::MAX, Some(1), None, Lasts::UntilReset),
        ] {
            assert_eq!(lasts(left, per_day, now, resets_at), expected, "{left} at {per_day:?}");
        }
    }
}
