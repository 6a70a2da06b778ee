//! Times in answers.

use chrono::{DateTime, SecondsFormat};

/// Seconds since 1970 as RFC 3339.
pub(super) fn rfc3339(seconds: i64) -> String {
    let time = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}
