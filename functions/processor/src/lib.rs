//! The stream processor of Sluicegate: DynamoDB stream events in, exact usage windows out.
//!
//! [`Processor::handle`] is a plain function over the records of one event. The `bootstrap` binary
//! runs it as a Lambda, `sluicegate replay` runs it locally; both get the same exactness:
//!
//! * every record is counted once in every window it belongs to, however often it is delivered,
//!   because each window's update is guarded by the position of the newest record in it;
//! * a record that cannot be counted is kept in quarantine and the batch goes on;
//! * what can be repeated (throttling, timeouts) is reported by its position, never dropped.

mod client;
mod expressions;
mod metrics;
mod processor;
mod quarantine;
mod report;
mod settings;
mod store;
mod tally;
mod usage;

pub use client::{client, sdk_config};
pub use metrics::Metrics;
pub use processor::{HandleError, Processor};
pub use report::{Failure, Outcome, Quarantined, Report};
pub use settings::{Retention, Settings, SettingsError};
pub use sluicegate_core::StreamEvent;
pub use store::{Refusal, explain};
