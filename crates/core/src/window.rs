//! Usage windows: minutes, hours, and the periods of calendars.
//!
//! A window is named by its kind and its start; every instant lies in exactly one window of a kind.

use chrono::DateTime;

use crate::excerpt::excerpt;
use crate::{Calendar, EpochMillis, InvalidCalendar, Zone, rfc3339_s};

/// The most kinds of windows: each kind is one more write for every bucket and batch, and the
/// transaction that counts a quarantined record has one item for each.
const KINDS_MAX: usize = 20;
/// The first second after the year 9999.
const END_OF_TIME_S: i64 = 253_402_300_800;

/// The kind of a usage window: a minute, an hour, or the periods of a calendar.
///
/// Reads and writes `minute`, `hour`, or a calendar like `day`, `week@sun` or
/// `month@15/Europe/Berlin` ([`Calendar`]). Kinds sort by their unit, shortest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WindowKind {
    /// A minute.
    Minute,
    /// An hour, UTC.
    Hour,
    /// A period of a calendar.
    Calendar(Calendar),
}

/// The kinds of windows that are counted: at least one and at most 20, and each once, because a
/// record would count twice in a repeated kind. Reads lists like `hour,day` or
/// `hour,month@15/Europe/Berlin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowKinds(Vec<WindowKind>);

impl WindowKinds {
    /// The kinds, shortest first.
    pub fn iter(&self) -> impl Iterator<Item = WindowKind> + '_ {
        self.0.iter().copied()
    }
}

impl Default for WindowKinds {
    /// Hours and days.
    fn default() -> Self {
        Self(vec![WindowKind::Hour, WindowKind::DAY])
    }
}

impl From<WindowKind> for WindowKinds {
    fn from(kind: WindowKind) -> Self {
        Self(vec![kind])
    }
}

impl std::str::FromStr for WindowKinds {
    type Err = InvalidWindowKind;

    fn from_str(list: &str) -> Result<Self, InvalidWindowKind> {
        let kinds: Result<Vec<WindowKind>, _> =
            list.split(',').map(|word| word.trim().parse()).collect();
        let mut kinds = kinds?;
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.len() > KINDS_MAX {
            return Err(InvalidWindowKind::TooMany(kinds.len()));
        }
        Ok(Self(kinds))
    }
}

impl std::fmt::Display for WindowKinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<String> = self.iter().map(|kind| kind.to_string()).collect();
        f.write_str(&kinds.join(","))
    }
}

/// A text that names no window kind, or a list of too many.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWindowKind {
    /// The unit is not known.
    #[error(
        "{0:?} is not a usage window: write minute, hour, day, week, month or year, or a calendar like month@15/Europe/Berlin"
    )]
    Unknown(String),
    /// The unit is known, but the first day or the time zone is not.
    #[error(transparent)]
    Calendar(InvalidCalendar),
    /// The list has more than 20 kinds.
    #[error(
        "{0} kinds of usage windows: list at most {KINDS_MAX}, as each adds a write to every batch"
    )]
    TooMany(usize),
}

impl WindowKind {
    /// A calendar day, UTC.
    pub const DAY: Self = Self::Calendar(Calendar::day());
    /// A calendar month, UTC.
    pub const MONTH: Self = Self::Calendar(Calendar::month());

    /// Reads a kind from a key. Unlike `from_str`, it accepts only the spelling of `Display`.
    pub(crate) fn from_key(text: &str) -> Option<Self> {
        text.parse().ok().filter(|kind: &Self| kind.to_string() == text)
    }

    /// The unit: `minute`, `hour`, `day`, `week`, `month` or `year`.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Calendar(calendar) => calendar.unit(),
        }
    }

    /// The time zone in which its windows begin: UTC unless the calendar has another one.
    #[must_use]
    pub const fn zone(self) -> Zone {
        match self {
            Self::Minute | Self::Hour => Zone::utc(),
            Self::Calendar(calendar) => calendar.zone(),
        }
    }

    /// The window of this kind that `at` lies in.
    #[must_use]
    pub fn containing(self, at: EpochMillis) -> Window {
        let seconds = at.get() / 1_000;
        let start_s = match self {
            Self::Minute => seconds - seconds % 60,
            Self::Hour => seconds - seconds % 3_600,
            // Offsets from UTC are whole seconds, so every boundary is a whole second.
            Self::Calendar(calendar) => calendar.period(at).start.get() / 1_000,
        };
        Window { kind: self, start_s }
    }
}

impl std::fmt::Display for WindowKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Minute | Self::Hour => f.write_str(self.unit()),
            Self::Calendar(calendar) => calendar.fmt(f),
        }
    }
}

impl std::str::FromStr for WindowKind {
    type Err = InvalidWindowKind;

    fn from_str(text: &str) -> Result<Self, InvalidWindowKind> {
        match text {
            "minute" => Ok(Self::Minute),
            "hour" => Ok(Self::Hour),
            _ => text.parse().map(Self::Calendar).map_err(|error| match error {
                InvalidCalendar::Unit(_) => InvalidWindowKind::Unknown(excerpt(text)),
                error => InvalidWindowKind::Calendar(error),
            }),
        }
    }
}

/// One window, `[start, end)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window {
    kind: WindowKind,
    start_s: i64,
}

impl Window {
    /// Its kind.
    #[must_use]
    pub const fn kind(self) -> WindowKind {
        self.kind
    }

    /// Its first second, since the epoch.
    #[must_use]
    pub const fn start_s(self) -> i64 {
        self.start_s
    }

    /// The first second after it, since the epoch.
    #[must_use]
    pub fn end_s(self) -> i64 {
        match self.kind {
            WindowKind::Minute => self.start_s + 60,
            WindowKind::Hour => self.start_s + 3_600,
            WindowKind::Calendar(calendar) => {
                calendar.period(self.start()).end.map_or(END_OF_TIME_S, |end| end.get() / 1_000)
            }
        }
    }

    /// Its start on the clocks of its time zone: the seconds since 1970-01-01T00:00:00 there.
    #[must_use]
    pub fn local_start_s(self) -> i64 {
        self.start_s + self.kind.zone().offset_s(self.start())
    }

    /// Its start.
    #[must_use]
    pub fn start(self) -> EpochMillis {
        // A window starts at or before an `EpochMillis` and not before 1970, so the default is
        // never taken.
        EpochMillis::new(self.start_s * 1_000).unwrap_or(EpochMillis::MIN)
    }

    /// The window after it; `None` after the year 9999.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        EpochMillis::new(self.end_s() * 1_000).ok().map(|at| self.kind.containing(at))
    }

    /// Its start as it stands in keys and output, like `2026-01-28T14:00:00Z`.
    #[must_use]
    pub fn start_text(self) -> String {
        rfc3339_s(self.start_s)
    }

    /// The window of `kind` that starts at `start`; `None` unless one starts exactly there and the
    /// text is spelled as [`Window::start_text`] spells it.
    #[must_use]
    pub fn parse(kind: WindowKind, start: &str) -> Option<Self> {
        let at = DateTime::parse_from_rfc3339(start).ok()?;
        let window = kind.containing(EpochMillis::new(at.timestamp_millis()).ok()?);
        (window.start_text() == start).then_some(window)
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
pub(crate) mod tests;
