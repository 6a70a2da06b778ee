//! Instants as people write them: RFC 3339, a day, or a duration before now.

use std::str::FromStr;

use chrono::{DateTime, NaiveDate, NaiveTime};

use crate::{Calendar, EpochMillis, WindowKind, Zone};

/// An instant, as it was given: `2026-01-28T14:00:00Z`, `2026-01-28`, `-24h` or `now`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimePoint {
    /// A fixed instant.
    At(EpochMillis),
    /// The beginning of a day, in the time zone of what is asked for.
    Day(NaiveDate),
    /// Milliseconds before now.
    Before(i64),
}

const HOUR_MS: i64 = 3_600_000;

/// A text that is no [`TimePoint`], or one before 1970 or after 9999.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a time: give one like 2026-01-28T14:00:00Z or 2026-01-28, or -24h, -90min, -7d, now"
)]
pub struct InvalidTimePoint(String);

const UNITS: [(&str, i64); 5] =
    [("min", 60_000), ("s", 1_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

impl TimePoint {
    /// The instant, for this now and in this time zone; nothing is before 1970.
    #[must_use]
    pub fn resolve(self, now: EpochMillis, zone: Zone) -> EpochMillis {
        match self {
            Self::At(at) => at,
            Self::Day(date) => {
                let midnight = date.and_time(NaiveTime::MIN).and_utc().timestamp_millis();
                // No zone is further from UTC, and a zone may have left out the date itself.
                let before = EpochMillis::new(midnight - 30 * HOUR_MS);
                let day = WindowKind::Calendar(Calendar::day().in_zone(zone))
                    .containing(before.unwrap_or(EpochMillis::MIN));
                let is_day = |day: &crate::Window| day.local_start_s() * 1_000 >= midnight;
                let mut days = std::iter::successors(Some(day), |day| day.next());
                days.find(is_day).map_or(EpochMillis::MAX, |day| day.start())
            }
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
        let day = text.parse::<NaiveDate>().ok();
        let at = match day {
            Some(day) => day.and_time(NaiveTime::MIN).and_utc(),
            None => DateTime::parse_from_rfc3339(text).map_err(|_| invalid())?.to_utc(),
        };
        let at = EpochMillis::new(at.timestamp_millis()).map_err(|_| invalid())?;
        Ok(day.map_or(Self::At(at), Self::Day))
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
            let at = text.parse::<TimePoint>().unwrap().resolve(now, Zone::utc());
            assert_eq!(at.get(), millis, "{text}");
        }
        let days = [("UTC", 1_769_558_400_000), ("Europe/Berlin", 1_769_554_800_000)];
        for (zone, millis) in days.into_iter().chain([("Pacific/Kiritimati", 1_769_508_000_000)]) {
            let day = "2026-01-28".parse::<TimePoint>().unwrap();
            assert_eq!(day.resolve(now, zone.parse().unwrap()).get(), millis, "{zone}");
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
