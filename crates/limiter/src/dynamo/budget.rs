//! Budgets: their use by the usage windows of the period, and the time that they last.

use std::collections::HashSet;
use std::ops::Range;
use std::pin::pin;

use futures_util::StreamExt;
use sluicegate_core::{
    EpochMillis, LimitStatus, Resource, UsageWindow, Wait, WindowKind, WindowSpan,
};

use super::read_error::ReadError;
use super::readers::Reader;

const DAY_MS: i64 = 86_400_000;
/// Windows that may divide a period: those that are usual, and the finest.
const KINDS: [WindowKind; 3] = [WindowKind::Hour, WindowKind::DAY, WindowKind::Minute];
/// The pace is the use of this many days, or of the days since the first use.
const PACE_DAYS: i64 = 7;

/// A budget in its period.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budget {
    /// The start of the period; `None`: the limit has no calendar.
    pub period_start: Option<EpochMillis>,
    /// Taken from the budget and not given back, in millitokens. A debt that the period began with
    /// counts, too.
    pub granted_milli: i64,
    /// The sum of the usage windows of the period, in millitokens; `None`: there are no such
    /// windows, or one of them is broken.
    pub used_milli: Option<i128>,
    /// Milliseconds until the next boundary, or until the bucket is full; `None`: never.
    pub resets_in_ms: Option<u64>,
    /// The time for which it lasts.
    pub lasts: Lasts,
    /// Usage windows that could not be read.
    pub broken_windows: usize,
}

/// The time for which a budget lasts at the pace of the last seven days. The pace of a new budget
/// is that since its first use, over a day at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// Nothing was used, or there are no windows to tell, or one of them is broken.
    Unknown,
    /// Longer than the period, or as much comes back as is used.
    UntilReset,
    /// Not until the next boundary.
    Until {
        /// The time when it is used up.
        at: EpochMillis,
        /// The pace, in millitokens a day.
        milli_per_day: i128,
    },
}

impl Budget {
    /// The time of the next boundary, or when the bucket is full; `None`: never.
    #[must_use]
    pub fn resets_at(&self, now: EpochMillis) -> Option<EpochMillis> {
        let millis = i64::try_from(self.resets_in_ms?).ok()?;
        EpochMillis::new(now.get().checked_add(millis)?).ok()
    }
}

impl Reader {
    /// The use of a limit of a bucket, given its status as of `now`.
    ///
    /// # Errors
    /// [`ReadError`]; broken usage windows are only counted.
    pub async fn budget(
        &self,
        resource: &Resource,
        status: &LimitStatus,
        now: EpochMillis,
    ) -> Result<Budget, ReadError> {
        let mut windows = Windows { reader: self, resource, status, now, broken: HashSet::new() };
        let (left, burst) = (status.available.get(), status.rule.burst().get());
        let period = status.rule.refill().calendar().map(|at| at.calendar.period(now));
        let used_milli = match period {
            Some(period) => windows.used_in_period(period.start).await?,
            None => None,
        };
        let full = status.rule.wait_for(status.rule.burst(), status.available, now, now);
        let resets_in_ms = match (period, full) {
            (Some(period), _) => period.end.map(|end| (end.get() - now.get()).unsigned_abs()),
            (None, Wait::None) => Some(0),
            (None, Wait::Millis(millis)) => Some(millis),
            (None, Wait::NoRefill | Wait::ExceedsBurst) => None,
        };
        let mut budget = Budget {
            period_start: period.map(|period| period.start),
            granted_milli: burst - left,
            used_milli,
            resets_in_ms,
            lasts: Lasts::Unknown,
            broken_windows: 0,
        };
        // A limit without a calendar refills while it is used.
        let (refilled, resets_at) = match period {
            Some(_) => (0, budget.resets_at(now)),
            None => {
                let tomorrow = EpochMillis::new(now.get() + DAY_MS).unwrap_or(now);
                (status.rule.refill().accrued_between(now, tomorrow), None)
            }
        };
        budget.lasts = lasts(left, windows.used_per_day().await?, refilled, now, resets_at);
        budget.broken_windows = windows.broken.len();
        Ok(budget)
    }
}

/// The usage windows of one limit of a bucket.
struct Windows<'a> {
    reader: &'a Reader,
    resource: &'a Resource,
    status: &'a LimitStatus,
    now: EpochMillis,
    /// The keys of the windows that cannot be read.
    broken: HashSet<String>,
}

impl Windows<'_> {
    /// The use of a period by its own window, or by the windows that divide it. `None`: there are
    /// none, or one of them is broken and there is no own window.
    async fn used_in_period(&mut self, start: EpochMillis) -> Result<Option<i128>, ReadError> {
        let own = self.status.rule.refill().calendar().map(|at| WindowKind::Calendar(at.calendar));
        let now_s = self.now.get() / 1_000;
        let (mut most, mut of_own) = (None, None);
        for kind in own.into_iter().chain(KINDS) {
            if kind.containing(start).start_s() * 1_000 != start.get() {
                continue;
            }
            let Some(windows) = self.read(kind, start..self.now).await? else { continue };
            // Windows of the start may have expired, and a kind that was switched on later shows
            // less. The limit's own window is there or not.
            let is_whole = windows.first().is_some_and(|first| {
                if Some(kind) == own {
                    return true;
                }
                let kept_s = first.expires_at_s.map(|expires| expires - first.window.end_s());
                kept_s.is_none_or(|kept_s| start.get() / 1_000 + kept_s > now_s)
            });
            if is_whole {
                most = most.max(Some(self.sum(&windows)));
            }
            if Some(kind) == own {
                of_own = most;
            }
        }
        // The other kinds may have been switched on later than a broken one.
        Ok(if !self.broken.is_empty() { of_own } else { most })
    }

    /// Millitokens a day over the last days, or since the first use if there was none in as many
    /// days before, but at least over one day. `None`: there are no windows, or one of them is
    /// broken.
    async fn used_per_day(&mut self) -> Result<Option<i128>, ReadError> {
        let now_ms = self.now.get();
        for kind in KINDS {
            // From the start of a window: it would be left out otherwise, and its time would count.
            let ago = |days| {
                let at = EpochMillis::new(now_ms - days * DAY_MS).unwrap_or(EpochMillis::MIN);
                EpochMillis::new(kind.containing(at).start_s() * 1_000).unwrap_or(at)
            };
            let (from, before) = (ago(PACE_DAYS), ago(2 * PACE_DAYS));
            let Some(windows) = self.read(kind, from..self.now).await? else { return Ok(None) };
            let Some(first) = windows.first() else { continue };
            let first_ms = first.window.start_s() * 1_000;
            let is_new = first_ms > from.get()
                && self.read(kind, before..from).await?.is_some_and(|before| before.is_empty());
            let since_ms = if is_new { first_ms } else { from.get() };
            let elapsed_ms = (self.now.get() - since_ms).max(DAY_MS);
            return Ok(Some(
                self.sum(&windows).saturating_mul(i128::from(DAY_MS)) / i128::from(elapsed_ms),
            ));
        }
        Ok(None)
    }

    /// The windows that start then. `None`: one of them is broken.
    async fn read(
        &mut self,
        kind: WindowKind,
        starts: Range<EpochMillis>,
    ) -> Result<Option<Vec<UsageWindow>>, ReadError> {
        let span = WindowSpan { kind, starts };
        let mut stream = pin!(self.reader.usage(&self.status.entity, self.resource, &span));
        let (mut windows, mut is_whole) = (Vec::new(), true);
        while let Some(window) = stream.next().await {
            match window {
                Ok(window) if window.events > 0 => windows.push(window),
                Ok(_) => {}
                Err(ReadError::Item(broken)) => {
                    is_whole = false;
                    self.broken.insert(broken.sk);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(is_whole.then_some(windows))
    }

    fn sum(&self, windows: &[UsageWindow]) -> i128 {
        let limit = &self.status.limit;
        windows.iter().filter_map(|window| window.consumed_milli.get(limit)).sum()
    }
}

/// `per_day` is used of it in a day, and `refilled` comes back.
fn lasts(
    left: i64,
    per_day: Option<i128>,
    refilled: i128,
    now: EpochMillis,
    resets_at: Option<EpochMillis>,
) -> Lasts {
    let Some(per_day) = per_day.filter(|per_day| *per_day > 0) else { return Lasts::Unknown };
    if per_day <= refilled {
        return Lasts::UntilReset;
    }
    let left_ms = i128::from(left.max(0)) * i128::from(DAY_MS) / (per_day - refilled);
    let until = i64::try_from(i128::from(now.get()) + left_ms).ok();
    match until.and_then(|until| EpochMillis::new(until).ok()) {
        Some(until) if resets_at.is_none_or(|resets_at| until < resets_at) => {
            Lasts::Until { at: until, milli_per_day: per_day }
        }
        _ => Lasts::UntilReset,
    }
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
            |days: i64| Lasts::Until { at: at(now.get() + days * DAY_MS), milli_per_day: 100 };
        for (left, per_day, resets_at, expected) in [
            (300, Some(100), resets_at, until(3)),
            (-5, Some(100), resets_at, until(0)),
            (800, Some(100), resets_at, Lasts::UntilReset),
            (800, Some(100), None, until(8)),
            (300, Some(0), resets_at, Lasts::Unknown),
            (300, Some(-7), resets_at, Lasts::Unknown),
            (300, None, resets_at, Lasts::Unknown),
            (i64::MAX, Some(1), None, Lasts::UntilReset),
        ] {
            assert_eq!(lasts(left, per_day, 0, now, resets_at), expected, "{left} at {per_day:?}");
        }
        // As much comes back as is used, and less.
        assert_eq!(lasts(100, Some(200), 240, now, None), Lasts::UntilReset);
        let Lasts::Until { at: until, .. } = lasts(100, Some(340), 240, now, None) else {
            panic!()
        };
        assert_eq!(until, at(now.get() + DAY_MS));
    }
}
