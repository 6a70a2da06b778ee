//! Alerts: thresholds of usage windows, and the outbox of those that were reached.
//!
//! A usage window keeps a claim of each threshold that it reached. The claim and the alert's entry in
//! the outbox are one transaction with the condition that there is no such claim, so there is one
//! entry for each threshold and window, whoever finds it reached and however often.

mod entry;
mod settings;
mod threshold;
mod window_state;

pub use entry::{Alert, OutboxEntry, OutboxState};
pub use settings::{AlertRules, AlertSettings};
pub use threshold::{InvalidThreshold, ShownThreshold, Threshold, Thresholds};
pub use window_state::{WindowState, calendar_amounts};
