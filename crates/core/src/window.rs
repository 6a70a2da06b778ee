//! Usage windows: calendar minutes, hours, days and months in UTC.
//!
//! A window is named by its kind and its start; every instant lies in exactly one window of a kind.

use chrono::{DateTime, Datelike, Months, NaiveDate, SecondsFormat, Utc};

use crate::EpochMillis;

/// The length of a usage window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WindowKind {
    /// A calendar minute.
    Minute,
    /// A calendar hour.
    Hour,
    /// A calendar day, UTC.
    Day,
    /// A calendar month, UTC.
    Month,
}

/// The kinds of windows that are counted: at least one, and each once, because a record would count
/// twice in a repeated kind. Reads lists like `hour,day`.
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
        Self(vec![WindowKind::Hour, WindowKind::Day])
    }
}

impl From<WindowKind> for WindowKinds {
    fn from(kind: WindowKind) -> Self {
        Self(vec![kind])
    }
}

impl std::str::FromStr for WindowKinds {
    type Err = UnknownWindowKind;

    fn from_str(list: &str) -> Result<Self, UnknownWindowKind> {
        let kinds: Result<Vec<WindowKind>, _> =
            list.split(',').map(|word| word.trim().parse()).collect();
        let mut kinds = kinds?;
        kinds.sort_unstable();
        kinds.dedup();
        Ok(Self(kinds))
    }
}

impl std::fmt::Display for WindowKinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<&str> = self.0.iter().map(|kind| kind.as_str()).collect();
        f.write_str(&kinds.join(","))
    }
}

/// A word that names no window kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not a usage window: use minute, hour, day or month")]
pub struct UnknownWindowKind {
    /// The word as given.
    pub word: String,
}

impl WindowKind {
    /// All kinds, shortest first.
    pub const ALL: [Self; 4] = [Self::Minute, Self::Hour, Self::Day, Self::Month];

    /// The kind as it stands in keys and settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The window of this kind that `at` lies in.
    #[must_use]
    pub fn containing(self, at: EpochMillis) -> Window {
        let seconds = at.get() / 1_000;
        let start_s = match self {
            Self::Minute => seconds - seconds % 60,
            Self::Hour => seconds - seconds % 3_600,
            Self::Day => seconds - seconds % 86_400,
            Self::Month => month_start(seconds),
        };
        Window { kind: self, start_s }
    }
}

impl std::fmt::Display for WindowKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for WindowKind {
    type Err = UnknownWindowKind;

    fn from_str(word: &str) -> Result<Self, UnknownWindowKind> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == word)
            .ok_or_else(|| UnknownWindowKind { word: word.to_owned() })
    }
}

/// One calendar window, `[start, end)` in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window {
    kind: WindowKind,
    start_s: i64,
}

impl Window {
    /// The length of the window.
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
            WindowKind::Day => self.start_s + 86_400,
            WindowKind::Month => utc(self.start_s)
                .checked_add_months(Months::new(1))
                .map_or(self.start_s, |end| end.timestamp()),
        }
    }

    /// Its start as it stands in keys and output, like `2026-01-28T14:00:00Z`.
    #[must_use]
    pub fn start_text(self) -> String {
        utc(self.start_s).to_rfc3339_opts(SecondsFormat::Secs, true)
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

fn utc(seconds: i64) -> DateTime<Utc> {
    // Instants end with the year 9999 and chrono's calendar does not: the default is never taken.
    DateTime::from_timestamp(seconds, 0).unwrap_or_default()
}

fn month_start(seconds: i64) -> i64 {
    let date = utc(seconds).date_naive();
    let first = NaiveDate::from_ymd_opt(date.year(), date.month(), 1).unwrap_or(date);
    first.and_time(chrono::NaiveTime::MIN).and_utc().timestamp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> EpochMillis {
        EpochMillis::new(DateTime::parse_from_rfc3339(text).unwrap().timestamp_millis()).unwrap()
    }

    #[test]
    fn kinds_are_listed_once_each() {
        let list = |text: &str| text.parse::<WindowKinds>().map(|kinds| kinds.to_string());
        assert_eq!(list("month, minute,month"), Ok("minute,month".to_owned()));
        assert_eq!(WindowKinds::default().to_string(), "hour,day");
        for text in ["", "hours", "hour,", "hour;day", ","] {
            assert!(list(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn windows_change_at_midnight_and_at_the_month_end() {
        let before = at("2028-02-29T23:59:59.999Z");
        let after = at("2028-03-01T00:00:00Z");
        let starts = |t| WindowKind::ALL.map(|kind| kind.containing(t).start_text());
        assert_eq!(
            starts(before),
            [
                "2028-02-29T23:59:00Z",
                "2028-02-29T23:00:00Z",
                "2028-02-29T00:00:00Z",
                "2028-02-01T00:00:00Z"
            ]
        );
        assert!(starts(after)[..3].iter().all(|start| start == "2028-03-01T00:00:00Z"));
        assert_eq!(starts(after)[3], "2028-03-01T00:00:00Z");
    }

    #[test]
    fn the_last_month_has_an_end() {
        let window = WindowKind::Month.containing(EpochMillis::MAX);
        assert_eq!(window.start_text(), "9999-12-01T00:00:00Z");
        assert_eq!(window.end_s() * 1_000, EpochMillis::MAX.get() + 1);
    }

    #[test]
    fn starts_that_are_none_do_not_parse() {
        assert!(Window::parse(WindowKind::Hour, "2026-01-28T14:00:00Z").is_some());
        for start in ["2026-01-28T14:00:01Z", "2026-01-28T14:00:00+00:00", "2026-01-28", ""] {
            assert!(Window::parse(WindowKind::Hour, start).is_none(), "{start}");
        }
        assert!("hours".parse::<WindowKind>().is_err());
    }

    proptest! {
        #[test]
        fn every_instant_lies_in_its_window_and_the_start_parses_back(
            millis in 0..=EpochMillis::MAX.get()
        ) {
            let at = EpochMillis::new(millis).unwrap();
            for kind in WindowKind::ALL {
                let window = kind.containing(at);
                prop_assert!(window.start_s() * 1_000 <= millis && millis < window.end_s() * 1_000);
                prop_assert_eq!(Window::parse(kind, &window.start_text()), Some(window));
            }
        }
    }
}
