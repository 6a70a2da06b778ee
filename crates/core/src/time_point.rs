//! Instants as people write them: RFC 3339, a day of UTC, or a duration before now.

use std::str::FromStr;

use chrono::{DateTime, NaiveDate, NaiveTime};

use crate::EpochMillis;

/// An instant, as it was given: `2026-01-28T14:00:00Z`, `2026-01-28` (its midnight in UTC), `-24h`
/// or `now`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimePoint {
    /// A fixed instant.
    At(EpochMillis),
    /// Milliseconds before now.
    Before(i64),
}

/// A text that is no [`TimePoint`], or one before 1970 or after 9999.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a time: give one like 2026-01-28T14:00:00Z or 2026-01-28, or -24h, -90min, -7d, now"
)]
pub struct InvalidTimePoint(String);

const UNITS: [(&str, i64); 5] =
    [("min", 60_000), ("s", 1_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

impl TimePoint {
    /// The instant, for this now; nothing is before 1970.
    #[must_use]
    pub fn resolve(self, now: EpochMillis) -> EpochMillis {
        match self {
            Self::At(at) => at,
            Self::Before(millis) => {
                EpochMillis::new(now.get().saturating_sub(millis)).unwrap_or(EpochMillis::MIN)
            }
        }
    }
}

impl FromStr for TimePoint {
    type Err = InvalidTimePoint;

    fn from_str(text: &str) -> Result<Self, InvalidTimePoint> {
        let invalid = || InvalidTimePoint(text.chars().take(40).collect());
        if text == "now" {
            return Ok(Self::Before(0));
        }
        if let Some(ago) = text.strip_prefix('-') {
            let digits = ago.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let unit = UNITS.iter().find(|(unit, _)| *unit == &ago[digits.len()..]);
            let count: Option<i64> = digits.parse().ok().filter(|count| *count >= 0);
            let millis =
                unit.zip(count).and_then(|((_, millis), count)| count.checked_mul(*millis));
            return millis.map(Self::Before).ok_or_else(invalid);
        }
        let at = match text.parse::<NaiveDate>() {
            Ok(day) => day.and_time(NaiveTime::MIN).and_utc(),
            Err(_) => DateTime::parse_from_rfc3339(text).map_err(|_| invalid())?.to_utc(),
        };
        EpochMillis::new(at.timestamp_millis()).map(Self::At).map_err(|_| invalid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_absolute_or_before_now() {
        let now = EpochMillis::new(1_769_608_800_000).unwrap();
        for (text, millis) in [
            ("now", 1_769_608_800_000),
            ("-24h", 1_769_522_400_000),
            ("-90min", 1_769_603_400_000),
            ("-0s", 1_769_608_800_000),
            ("2026-01-28T14:00:00Z", 1_769_608_800_000),
            ("2026-01-28T15:00:00.5+01:00", 1_769_608_800_500),
            ("2026-01-28", 1_769_558_400_000),
            ("-99999999d", 0),
        ] {
            assert_eq!(text.parse::<TimePoint>().unwrap().resolve(now).get(), millis, "{text}");
        }
        for text in [
            "",
            "-",
            "-h",
            "-24",
            "24h",
            "-1y",
            "-9223372036854775807d",
            "2026-01-32",
            "1969-01-01T00:00:00Z",
        ] {
            assert!(text.parse::<TimePoint>().is_err(), "{text}");
        }
    }
}
