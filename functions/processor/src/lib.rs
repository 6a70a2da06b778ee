//! The stream processor of Sluicegate: DynamoDB stream events in, exact usage windows out.
//!
//! [`Processor::handle`] is a plain function over the records of one event. The `bootstrap` binary
//! runs it as a Lambda, `sluicegate replay` runs it locally; both are equally exact:
//! * every record is counted once in every window it belongs to, however often it is delivered,
//!   because each window's update is guarded by the position of the newest record in it;
//! * a record that cannot be counted is kept in quarantine and the batch goes on;
//! * a write that can be repeated (throttling, timeouts) is reported by its position, never
//!   dropped.

mod attempt;
mod backoff;
mod client;
mod entry;
mod expressions;
#[cfg(feature = "lambda")]
mod metrics;
mod outcome;
mod processor;
mod quarantine;
mod replay;
mod report;
mod settings;
mod window_writer;
mod write_error;

pub use client::{client, https_client, sdk_config};
#[cfg(feature = "lambda")]
pub use metrics::{Metrics, MetricsError};
pub use processor::Processor;
pub use replay::{IfUnknown, Replayed};
pub use report::{Failure, HandleError, Outcome, Quarantined, Report};
pub use settings::{BadRetention, Retention, Settings, SettingsError};
pub use sluicegate_core::StreamEvent;
pub use write_error::{chain, explain, one_line};
