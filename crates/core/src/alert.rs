//! Alerts: thresholds of usage windows, and the outbox of the alerts of reached thresholds.
//!
//! A usage window keeps a claim of each threshold that it reached. The claim and the alert's entry
//! in the outbox are one transaction with the condition that there is no such claim. So there is
//! one entry for each threshold that a window reached, even if several deliveries find it reached.

mod entry;
mod settings;
mod threshold;
mod window_state;

pub use entry::{Alert, OutboxEntry, OutboxState};
pub use settings::{AlertRules, AlertSettings};
pub use threshold::{InvalidThreshold, ShownThreshold, Threshold, Thresholds};
pub use window_state::{WindowState, calendar_amounts};
