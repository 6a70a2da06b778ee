//! The settings from the environment, checked once at start.

use sluicegate_core::{InvalidWindowKind, Layouts, WindowKinds};

/// The time for which usage windows are kept after their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// This many days, at least two.
    Days(u32),
    /// For ever: windows carry no `ttl`.
    Forever,
}

impl Retention {
    /// The fewest days. A window must outlive the 24 hours in which the stream can deliver late.
    /// Otherwise a late record would find no watermark and count again.
    pub const MIN_DAYS: u32 = 2;
    /// The most days, a century.
    pub const MAX_DAYS: u32 = 36_525;

    /// The time from which a window that ends at `end_s` and is written at `now_s` may be deleted,
    /// all in epoch seconds. A past window is kept for the same time from now on: it must exist as
    /// long as the stream can deliver one of its records again.
    #[must_use]
    pub fn expiry_s(self, end_s: i64, now_s: i64) -> Option<i64> {
        match self {
            Self::Days(days) => Some(end_s.max(now_s) + i64::from(days) * 86_400),
            Self::Forever => None,
        }
    }
}

/// Days from 2 to 36,525, or 0 to keep windows for ever.
impl std::str::FromStr for Retention {
    type Err = BadRetention;

    fn from_str(value: &str) -> Result<Self, BadRetention> {
        match value.trim().parse() {
            Ok(0) => Ok(Self::Forever),
            Ok(days @ Self::MIN_DAYS..=Self::MAX_DAYS) => Ok(Self::Days(days)),
            _ => Err(BadRetention),
        }
    }
}

/// A text that is not a retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("give a number of days from 2 to 36525, or 0 to keep windows for ever")]
pub struct BadRetention;

/// The settings of a processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The table that windows and quarantined records are written to.
    pub table: String,
    /// The kinds of windows that are counted.
    pub window_kinds: WindowKinds,
    /// The time for which windows are kept.
    pub retention: Retention,
    /// If on, the processor claims each threshold of the table that a window reaches. If off, it
    /// reads no thresholds.
    pub alerts: Switch,
    /// The one region that counts a global table. A processor elsewhere leaves records alone.
    pub home_region: Option<String>,
    /// The layouts of bucket items that are counted.
    pub layouts: Layouts,
}

/// A setting that is on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Switch {
    /// It is on.
    On,
    /// It is off.
    #[default]
    Off,
}

/// A setting that is missing or invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The table's name is not set.
    #[error("TABLE_NAME is not set: give the name of the DynamoDB table")]
    NoTable,
    /// The list names something that is no kind of window, or too many kinds.
    #[error("USAGE_WINDOWS={value:?}: {source}")]
    Windows {
        /// The value as given.
        value: String,
        /// The expected form.
        source: InvalidWindowKind,
    },
    /// The destination of alerts cannot be used.
    #[error("ALERTS_TO and ALERTS_SECRET: {0}")]
    Destination(String),
    /// A switch is neither on nor off.
    #[error("{name}={value:?}: write on or off")]
    Switch {
        /// The variable.
        name: &'static str,
        /// The value as given.
        value: String,
    },
    /// The home region is not the name of a region.
    #[error("HOME_REGION={value:?}: write a region's name like eu-west-1")]
    HomeRegion {
        /// The value as given.
        value: String,
    },
    /// The retention is not a number of days, or out of range.
    #[error("USAGE_TTL_DAYS={value:?}: {source}")]
    Retention {
        /// The value as given.
        value: String,
        /// The expected form.
        source: BadRetention,
    },
}

impl Settings {
    /// `hour` and `day` windows of the table, kept for 90 days, without alerts, of composite
    /// buckets only.
    #[must_use]
    pub fn new(table: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            window_kinds: WindowKinds::default(),
            retention: Retention::Days(90),
            alerts: Switch::Off,
            home_region: None,
            layouts: Layouts::Composite,
        }
    }

    /// Reads `TABLE_NAME`, `USAGE_WINDOWS` (default `hour,day`), `USAGE_TTL_DAYS` (default 90),
    /// `ALERTS` and `SHARDED_BUCKETS` (`on` or `off`, the default) and `HOME_REGION` (default: any
    /// region counts) through `get`; an empty value counts as not set.
    ///
    /// # Errors
    /// [`SettingsError`] names the variable and its valid values.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let get = |name| get(name).filter(|value| !value.trim().is_empty());
        let mut settings = Self::new(get("TABLE_NAME").ok_or(SettingsError::NoTable)?);
        if let Some(value) = get("USAGE_WINDOWS") {
            settings.window_kinds =
                value.parse().map_err(|source| SettingsError::Windows { value, source })?;
        }
        if let Some(value) = get("USAGE_TTL_DAYS") {
            settings.retention =
                value.parse().map_err(|source| SettingsError::Retention { value, source })?;
        }
        let switch = |name| match get(name) {
            None => Ok(Switch::Off),
            Some(value) => match value.trim() {
                "on" => Ok(Switch::On),
                "off" => Ok(Switch::Off),
                _ => Err(SettingsError::Switch { name, value }),
            },
        };
        settings.alerts = switch("ALERTS")?;
        if switch("SHARDED_BUCKETS")? == Switch::On {
            settings.layouts = Layouts::CompositeAndSharded;
        }
        if let Some(value) = get("HOME_REGION") {
            let region = value.trim();
            if !is_region(region) {
                return Err(SettingsError::HomeRegion { value });
            }
            settings.home_region = Some(region.to_owned());
        }
        Ok(settings)
    }
}

/// True if a text has the form of a region's name: `eu-west-1`, `us-gov-east-1`. This finds typing
/// errors: if the home region is the region of no processor, nothing is counted.
#[must_use]
pub fn is_region(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let letters = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase());
    match parts.as_slice() {
        [area @ .., number] => {
            area.len() >= 2
                && area.iter().all(letters)
                && !number.is_empty()
                && number.bytes().all(|b| b.is_ascii_digit())
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_env(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn only_the_table_is_required() {
        assert_eq!(from(&[("TABLE_NAME", "t")]), Ok(Settings::new("t")));
        for pairs in [&[][..], &[("TABLE_NAME", " ")]] {
            assert_eq!(from(pairs), Err(SettingsError::NoTable));
        }
    }

    #[test]
    fn windows_are_any_kinds_each_once() {
        let windows = |value| {
            from(&[("TABLE_NAME", "t"), ("USAGE_WINDOWS", value)])
                .map(|s| s.window_kinds.to_string())
        };
        assert_eq!(windows("month, minute,month"), Ok("minute,month".to_owned()));
        assert_eq!(windows("day/asia/tokyo, hour"), Ok("hour,day/Asia/Tokyo".to_owned()));
        for (value, problem) in [
            (
                "hours",
                "USAGE_WINDOWS=\"hours\": \"hours\" is not a usage window: write minute, hour",
            ),
            ("day/Tokyo", "USAGE_WINDOWS=\"day/Tokyo\": \"Tokyo\" is not a time zone"),
        ] {
            let error = windows(value).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{error}");
        }
    }

    #[test]
    fn alerts_are_off_unless_switched_on() {
        let alerts = |value| from(&[("TABLE_NAME", "t"), ("ALERTS", value)]).map(|s| s.alerts);
        assert_eq!(alerts("on"), Ok(Switch::On));
        assert_eq!([alerts("off"), alerts("")], [Ok(Switch::Off), Ok(Switch::Off)]);
        let error = alerts("yes").unwrap_err().to_string();
        assert_eq!(error, "ALERTS=\"yes\": write on or off");
    }

    #[test]
    fn a_home_region_has_the_form_of_a_region() {
        let home =
            |value| from(&[("TABLE_NAME", "t"), ("HOME_REGION", value)]).map(|s| s.home_region);
        assert_eq!(home(" eu-west-1 "), Ok(Some("eu-west-1".to_owned())));
        assert_eq!(home("us-gov-east-1"), Ok(Some("us-gov-east-1".to_owned())));
        assert_eq!(home(""), Ok(None));
        for value in ["eu-west", "Frankfurt", "eu-west-1a", "eu--west-1", "1", "eu-1", "-"] {
            let error = home(value).unwrap_err().to_string();
            let text = format!("HOME_REGION={value:?}: write a region's name like eu-west-1");
            assert_eq!(error, text);
        }
    }

    #[test]
    fn sharded_buckets_are_counted_if_switched_on() {
        let layouts =
            |value| from(&[("TABLE_NAME", "t"), ("SHARDED_BUCKETS", value)]).map(|s| s.layouts);
        assert_eq!(layouts("on"), Ok(Layouts::CompositeAndSharded));
        assert_eq!([layouts("off"), layouts("")], [Ok(Layouts::Composite), Ok(Layouts::Composite)]);
        let error = layouts("1").unwrap_err().to_string();
        assert_eq!(error, "SHARDED_BUCKETS=\"1\": write on or off");
    }

    #[test]
    fn retention_is_never_shorter_than_the_stream() {
        let retention =
            |value| from(&[("TABLE_NAME", "t"), ("USAGE_TTL_DAYS", value)]).map(|s| s.retention);
        assert_eq!(retention("0"), Ok(Retention::Forever));
        assert_eq!(retention("2"), Ok(Retention::Days(2)));
        for value in ["1", "-3", "ninety", "2.5", "99999"] {
            let error = retention(value).unwrap_err();
            assert!(error.to_string().contains("USAGE_TTL_DAYS"), "{error}");
        }
        assert_eq!(Retention::Days(2).expiry_s(100, 50), Some(172_900));
        assert_eq!(Retention::Days(2).expiry_s(100, 200), Some(173_000), "from now on");
        assert_eq!(Retention::Forever.expiry_s(100, 50), None);
    }
}
