//! The days of an export, in the time zone of its windows. Each row belongs to the day on which its
//! window starts.

use sluicegate::types::{EpochMillis, Window, WindowKind, WindowSpan};
use sluicegate_core::{Calendar, TimePoint};

use super::super::series;
use crate::error::CliError;

const DATE: &str = "%Y-%m-%d";

/// The day that is meant, as a window of `kind`.
fn day(point: TimePoint, kind: WindowKind, now: EpochMillis) -> Result<Window, CliError> {
    let at = point.resolve(now, kind.zone());
    let day = kind.containing(at);
    if matches!(point, TimePoint::At(_)) && day.start() != at {
        let (start, zone) = (day.start_text(), kind.zone());
        return Err(CliError::BadInput(format!(
            "an export has whole days, and this day begins at {start} ({zone}); give a date like 2026-11-01"
        )));
    }
    Ok(day)
}

/// Adjacent days, earliest first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Days {
    windows: WindowKind,
    first: Window,
    /// The start of the first day after them.
    end_s: i64,
}

impl Days {
    /// The days from `from` to before `to`, or to the current one, whichever comes first.
    ///
    /// # Errors
    /// [`CliError::BadInput`] if there are none.
    pub(super) fn new(
        windows: WindowKind,
        from: TimePoint,
        to: Option<TimePoint>,
        now: EpochMillis,
    ) -> Result<Self, CliError> {
        let days = WindowKind::Calendar(Calendar::day().in_zone(windows.zone()));
        let first = day(from, days, now)?;
        let today = days.containing(now);
        let end_s = match to {
            Some(to) => day(to, days, now)?.start_s().min(today.end_s()),
            None => today.end_s(),
        };
        if first.start_s() >= end_s {
            return Err(CliError::bad(
                "no day lies between --from and --to; --to is not included, and no day after today",
            ));
        }
        Ok(Self { windows, first, end_s })
    }

    /// The days on which a window can start.
    pub(super) fn iter(self) -> impl Iterator<Item = Day> {
        let days = std::iter::successors(Some(self.first), |day| day.next());
        let days = days.take_while(move |day| day.start_s() < self.end_s);
        days.filter_map(move |day| {
            let span = WindowSpan::within(day, self.windows);
            let (_, last) = span.ends()?;
            Some(Day { date: series::time(day, DATE), span, end_s: last.end_s() })
        })
    }

    /// All of their windows.
    pub(super) fn span(self) -> WindowSpan {
        let end = EpochMillis::new(self.end_s * 1_000).unwrap_or(EpochMillis::MAX);
        WindowSpan { kind: self.windows, starts: self.first.start()..end }
    }
}

/// A day on which windows start.
#[derive(Debug)]
pub(super) struct Day {
    /// `2026-11-01`
    pub(super) date: String,
    /// Its windows.
    pub(super) span: WindowSpan,
    /// The end of the last of them, in seconds since the epoch.
    pub(super) end_s: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-03-29T12:00:00Z, the day on which Berlin's summer time begins.
    const NOW: i64 = 1_774_785_600_000;

    fn days(kind: &str, from: &str, to: &str) -> Result<Vec<(String, String)>, String> {
        let bound = |text: &str| text.parse::<TimePoint>().map_err(|error| error.to_string());
        let to = if to.is_empty() { None } else { Some(bound(to)?) };
        let (kind, now) = (kind.parse().unwrap(), EpochMillis::new(NOW).unwrap());
        let days = Days::new(kind, bound(from)?, to, now).map_err(|error| error.to_string())?;
        let shown = |day: Day| (day.date, day.span.ends().unwrap().0.start_text());
        Ok(days.iter().map(shown).collect())
    }

    #[test]
    fn days_are_those_of_the_zone_of_the_windows() {
        let day = |date: &str, start: &str| (date.to_owned(), format!("2026-{start}Z"));
        let utc = [day("2026-03-28", "03-28T00:00:00"), day("2026-03-29", "03-29T00:00:00")];
        for (from, to) in [
            ("2026-03-28", ""),
            ("2026-03-28", "2026-03-30"),
            ("2026-03-28T01:00:00+01:00", "2999-01-01"),
            ("-24h", ""),
        ] {
            assert_eq!(days("hour", from, to).as_deref(), Ok(&utc[..]), "{from} {to}");
        }
        assert_eq!(days("hour", "-1d", "now").as_deref(), Ok(&utc[..1]));
        let berlin = [day("2026-03-28", "03-27T23:00:00"), day("2026-03-29", "03-28T23:00:00")];
        assert_eq!(days("day/Europe/Berlin", "2026-03-28", "").as_deref(), Ok(&berlin[..]));
        let months = [day("2026-02-01", "02-01T00:00:00"), day("2026-03-01", "03-01T00:00:00")];
        assert_eq!(days("month", "2026-01-15", "").as_deref(), Ok(&months[..]));
    }

    #[test]
    fn bounds_that_are_no_days_are_refused() {
        for (from, to, why) in [
            ("yesterday", "", "\"yesterday\" is not a time"),
            ("2026-02-30", "", "is not a time"),
            ("2026-03-28T01:00:00Z", "", "whole days"),
            ("2026-03-28", "2026-03-28", "no day lies between"),
            ("2026-03-30", "", "no day lies between"),
        ] {
            let error = days("day", from, to).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    /// Samoa had no 2011-12-30.
    #[test]
    fn a_date_that_a_zone_left_out_is_the_next_one() {
        let found = days("day/Pacific/Apia", "2011-12-30", "2012-01-01").unwrap();
        assert_eq!(found, [("2011-12-31".to_owned(), "2011-12-30T10:00:00Z".to_owned())]);
    }
}
