//! Alerts: their attribute names, and the identity of an entry of the outbox.

use crate::{EpochMillis, LimitName};

/// The set of the thresholds that a usage window has claimed, as [`claim_text`] spells them.
pub const CLAIMED_ALERTS: &str = "alerts";
/// The limit of an alert.
pub const ALERT_LIMIT: &str = "limit";
/// The kind of window of an alert.
pub const ALERT_WINDOW: &str = "window";
/// The start of the window of an alert.
pub const ALERT_START: &str = "start";
/// The threshold of an alert.
pub const ALERT_THRESHOLD: &str = "threshold";
/// The sum of the window when the alert was claimed, in millitokens.
pub const ALERT_SUM: &str = "sum";
/// The amount of the calendar limit when the alert was claimed, in millitokens.
pub const ALERT_AMOUNT: &str = "amount";
/// The number of failed deliveries of an entry.
pub const ATTEMPTS: &str = "attempts";
/// The time from which an open entry may be delivered again, epoch milliseconds.
pub const NEXT_AT: &str = "next_at";
/// The state of an entry that was delivered.
pub const SENT: &str = "sent";
/// The state of an entry that nothing delivers any more.
pub const FAILED: &str = "failed";

pub(super) const SCOPE_PREFIX: &str = "#AT#";
pub(super) const OPEN_PREFIX: &str = "#OPEN#";
pub(super) const CLOSED_PREFIX: &str = "#CLOSED#";

/// The attribute of a calendar limit in a usage window of that calendar: its whole amount, in
/// millitokens, at the window's newest record.
#[must_use]
pub fn amount_attribute(limit: &LimitName) -> String {
    format!("cap_{limit}")
}

/// The limit of an [`amount_attribute`], not checked yet.
#[must_use]
pub fn parse_amount_attribute(attribute: &str) -> Option<&str> {
    attribute.strip_prefix("cap_")
}

/// The attribute of the thresholds of one limit in an item of alert settings.
#[must_use]
pub fn thresholds_attribute(limit: &LimitName) -> String {
    format!("t_{limit}")
}

/// The limit of a [`thresholds_attribute`], not checked yet.
#[must_use]
pub fn parse_thresholds_attribute(attribute: &str) -> Option<&str> {
    attribute.strip_prefix("t_")
}

/// A claimed threshold, as it stands in [`CLAIMED_ALERTS`]. Names have no `#`.
#[must_use]
pub fn claim_text(limit: &LimitName, threshold: &str) -> String {
    format!("{limit}#{threshold}")
}

/// The identity of an alert: the same for the same entity, resource, limit, window and threshold.
/// It reads and writes 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AlertId(pub u128);

impl std::fmt::Display for AlertId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Identifies an entry of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutboxId {
    /// The time of its claim. Entries are delivered in this order.
    pub at: EpochMillis,
    /// Its alert.
    pub alert: AlertId,
}

impl std::fmt::Display for OutboxId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The year 9999 has 15 digits.
        write!(f, "{:015}#{}", self.at.get(), self.alert)
    }
}

impl OutboxId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (at, alert) = text.split_once('#')?;
        let id = Self {
            at: EpochMillis::new(at.parse().ok()?).ok()?,
            alert: AlertId(u128::from_str_radix(alert, 16).ok()?),
        };
        (id.to_string() == text).then_some(id)
    }
}
