//! Calendar periods: days, weeks, months and years in a time zone, from a day of choice.
//!
//! The periods of a calendar are numbered, and each ends where the next begins. A period begins at the
//! first instant of its first day. That is midnight, or the first instant after a change of the
//! clocks that leaves midnight out. Local time may go back over midnight; the number of the period
//! does not go back with it.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use jiff::{Span, Timestamp};

use crate::EpochMillis;
use crate::excerpt::excerpt;

mod zone;

pub use zone::{UnknownZone, Zone};

const DAY_MS: i64 = 86_400_000;
const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// A Monday; the calendar's periods are numbered from about here.
const FIRST_MONDAY: Date = Date::constant(1969, 12, 29);
const EPOCH_DAY: Date = Date::constant(1970, 1, 1);

/// The periods of a calendar limit or of a usage window.
///
/// Reads and writes `day`, `week`, `month@15` or `year@04-06/Europe/London`: the unit, the day on
/// which a period begins, and the time zone. Unless said otherwise, a week begins on Monday, a month
/// on the 1st, a year on 01-01, and the zone is UTC. In a month that lacks the day, the period begins
/// on the last one. Calendars sort by their unit first, shortest first.
///
/// ```
/// use sluicegate_core::{Calendar, EpochMillis};
///
/// let calendar: Calendar = "month@31/Europe/Berlin".parse()?;
/// let in_february = EpochMillis::new(1_772_200_000_000)?;
/// let period = calendar.period(in_february);
/// // From 2026-01-31 to 2026-02-28, both at midnight in Berlin.
/// assert_eq!(period.start.get(), 1_769_814_000_000);
/// assert_eq!(period.end.map(|end| end.get()), Some(1_772_233_200_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Calendar {
    cycle: Cycle,
    zone: Zone,
}

/// The unit of a period and the day on which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Cycle {
    Day,
    /// Days after Monday.
    Week(u8),
    /// Day of the month.
    Month(i8),
    /// Month and day.
    Year(i8, i8),
}

/// One period of a calendar, `[start, end)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CalendarPeriod {
    /// Its number: the next period has the next number.
    pub index: i64,
    /// Its first millisecond, or 1970 if it begins before.
    pub start: EpochMillis,
    /// The first millisecond after it; `None`: it has no end before the year 9999 is over.
    pub end: Option<EpochMillis>,
}

/// A text that is no calendar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCalendar {
    /// The unit is not known.
    #[error("{0:?} is not a calendar period: write day, week, month or year")]
    Unit(String),
    /// The day is none of the unit.
    #[error(
        "{0:?} is not the first day of a calendar period: write week@mon, month@15, year@04-06, or day/Europe/Berlin for a time zone"
    )]
    FirstDay(String),
    /// The time zone is not known.
    #[error(transparent)]
    Zone(#[from] UnknownZone),
}

impl Calendar {
    /// The units of periods, as texts name them.
    pub const UNITS: [&str; 4] = ["day", "week", "month", "year"];

    /// Days in UTC.
    #[must_use]
    pub const fn day() -> Self {
        Self::in_utc(Cycle::Day)
    }

    /// Weeks in UTC, from Monday.
    #[must_use]
    pub const fn week() -> Self {
        Self::in_utc(Cycle::Week(0))
    }

    /// Months in UTC, from the 1st.
    #[must_use]
    pub const fn month() -> Self {
        Self::in_utc(Cycle::Month(1))
    }

    /// Years in UTC, from January.
    #[must_use]
    pub const fn year() -> Self {
        Self::in_utc(Cycle::Year(1, 1))
    }

    const fn in_utc(cycle: Cycle) -> Self {
        Self { cycle, zone: Zone::utc() }
    }

    /// The same periods in another time zone.
    #[must_use]
    pub const fn in_zone(self, zone: Zone) -> Self {
        Self { zone, ..self }
    }

    /// The time zone.
    #[must_use]
    pub const fn zone(self) -> Zone {
        self.zone
    }

    /// The unit of a period: `day`, `week`, `month` or `year`.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        Self::UNITS[self.cycle.unit()]
    }

    /// The longest period in milliseconds, changes of the clocks aside.
    #[must_use]
    pub const fn longest_ms(self) -> i64 {
        DAY_MS
            * match self.cycle {
                Cycle::Day => 1,
                Cycle::Week(_) => 7,
                Cycle::Month(_) => 31,
                Cycle::Year(..) => 366,
            }
    }

    /// The period that an instant lies in.
    #[must_use]
    pub fn period(self, at: EpochMillis) -> CalendarPeriod {
        thread_local! {
            /// Periods that were asked for: most instants lie in the same one as the last.
            static RECENT: [Cell<Option<(Calendar, CalendarPeriod)>>; 8] =
                const { [const { Cell::new(None) }; 8] };
        }
        RECENT.with(|recent| {
            let slot = &recent[(self.zone.number() * 4 + self.cycle.unit()) % recent.len()];
            match slot.get() {
                Some((calendar, period)) if calendar == self && period.contains(at) => period,
                _ => {
                    let period = self.find_period(at);
                    slot.set(Some((self, period)));
                    period
                }
            }
        })
    }

    /// The number of periods that began after the first instant, up to the second; zero if that is not
    /// later.
    #[must_use]
    pub fn boundaries(self, after: EpochMillis, until: EpochMillis) -> i64 {
        let last = self.period(until);
        if last.start <= after { 0 } else { last.index - self.find_period(after).index }
    }

    /// The first instant of a period; `None`: it begins before 1970 or after 9999.
    #[must_use]
    pub fn start_of(self, index: i64) -> Option<EpochMillis> {
        EpochMillis::new(self.start_ms(index)).ok()
    }

    fn find_period(self, at: EpochMillis) -> CalendarPeriod {
        let date = self.zone.rules().to_datetime(zone::timestamp(at)).date();
        let mut index = self.cycle.index_of(date);
        while self.start_ms(index) > at.get() {
            index -= 1;
        }
        let mut end_ms = self.start_ms(index + 1);
        // Local time went back over midnight.
        while end_ms <= at.get() {
            index += 1;
            end_ms = self.start_ms(index + 1);
        }
        let start = self.start_of(index).unwrap_or(EpochMillis::MIN);
        CalendarPeriod { index, start, end: EpochMillis::new(end_ms).ok() }
    }

    /// `i64::MAX` stands for anything later than the range of timestamps.
    fn start_ms(self, index: i64) -> i64 {
        let midnight = self.cycle.date(index).map(|date| date.at(0, 0, 0, 0));
        let start = midnight.and_then(|midnight| self.zone.rules().to_timestamp(midnight).ok());
        start.map_or(i64::MAX, Timestamp::as_millisecond)
    }
}

impl CalendarPeriod {
    fn contains(&self, at: EpochMillis) -> bool {
        self.start <= at && self.end.is_none_or(|end| at < end)
    }
}

impl Cycle {
    /// The number of the unit, 0 to 3.
    const fn unit(self) -> usize {
        match self {
            Self::Day => 0,
            Self::Week(_) => 1,
            Self::Month(_) => 2,
            Self::Year(..) => 3,
        }
    }

    /// The number of the period that a day lies in.
    fn index_of(self, date: Date) -> i64 {
        let months = i64::from(date.year() - 1970) * 12 + i64::from(date.month() - 1);
        let index = match self {
            Self::Day => days_between(EPOCH_DAY, date),
            Self::Week(after) => {
                (days_between(FIRST_MONDAY, date) - i64::from(after)).div_euclid(7)
            }
            Self::Month(_) => months,
            Self::Year(..) => i64::from(date.year() - 1970),
        };
        let is_before_first = self.date(index).is_some_and(|first| date < first);
        index - i64::from(is_before_first)
    }

    /// The first day of a period; `None` after the year 9999.
    fn date(self, index: i64) -> Option<Date> {
        let day_in = |months: i64, day: i8| {
            let year = i16::try_from(1970 + months.div_euclid(12)).ok()?;
            let month = i8::try_from(months.rem_euclid(12) + 1).ok()?;
            let first = Date::new(year, month, 1).ok()?;
            Date::new(year, month, day.min(first.days_in_month())).ok()
        };
        match self {
            Self::Day => EPOCH_DAY.checked_add(Span::new().try_days(index).ok()?).ok(),
            Self::Week(after) => {
                let days = index.checked_mul(7)? + i64::from(after);
                FIRST_MONDAY.checked_add(Span::new().try_days(days).ok()?).ok()
            }
            Self::Month(day) => day_in(index, day),
            Self::Year(month, day) => day_in(index.checked_mul(12)? + i64::from(month - 1), day),
        }
    }

    fn parse(unit: &str, day: Option<&str>) -> Option<Self> {
        let number = |text: &str| {
            let is_short = matches!(text.len(), 1 | 2) && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<i8>().ok().filter(|_| is_short)
        };
        match (unit, day) {
            ("day", None) => Some(Self::Day),
            ("week", None) => Some(Self::Week(0)),
            ("week", Some(day)) => {
                let after = WEEKDAYS.iter().position(|known| *known == day)?;
                u8::try_from(after).ok().map(Self::Week)
            }
            ("month", None) => Some(Self::Month(1)),
            ("month", Some(day)) => {
                number(day).filter(|day| (1..=31).contains(day)).map(Self::Month)
            }
            ("year", None) => Some(Self::Year(1, 1)),
            ("year", Some(day)) => {
                let (month, day) = day.split_once('-')?;
                let (month, day) = (number(month)?, number(day)?);
                // A leap year has every day that there is.
                Date::new(1972, month, day).ok().map(|_| Self::Year(month, day))
            }
            _ => None,
        }
    }
}

fn days_between(from: Date, to: Date) -> i64 {
    to.duration_since(from).as_hours() / 24
}

impl FromStr for Calendar {
    type Err = InvalidCalendar;

    fn from_str(text: &str) -> Result<Self, InvalidCalendar> {
        let (period, zone) = text.split_once('/').map_or((text, None), |(p, z)| (p, Some(z)));
        let (unit, day) = period.split_once('@').map_or((period, None), |(u, d)| (u, Some(d)));
        let cycle = Cycle::parse(unit, day).ok_or_else(|| match unit {
            known if Self::UNITS.contains(&known) => InvalidCalendar::FirstDay(excerpt(period)),
            _ => InvalidCalendar::Unit(excerpt(unit)),
        })?;
        let zone = zone.map_or_else(|| Ok(Zone::utc()), str::parse)?;
        Ok(Self { cycle, zone })
    }
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Calendar::UNITS[self.unit()])?;
        match self {
            Self::Day | Self::Week(0) | Self::Month(1) | Self::Year(1, 1) => Ok(()),
            Self::Week(after) => write!(f, "@{}", WEEKDAYS[usize::from(*after)]),
            Self::Month(day) => write!(f, "@{day}"),
            Self::Year(month, day) => write!(f, "@{month:02}-{day:02}"),
        }
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cycle)?;
        if self.zone == Zone::utc() { Ok(()) } else { write!(f, "/{}", self.zone) }
    }
}

#[cfg(test)]
#[path = "calendar_tests.rs"]
pub(crate) mod tests;
