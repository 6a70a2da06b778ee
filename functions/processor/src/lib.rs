//! The stream processor of Sluicegate: DynamoDB stream events in, exact usage windows out.
//!
//! [`Processor::handle`] is a plain function over the records of one event. The `bootstrap` binary
//! runs it as a Lambda, `sluicegate replay` runs it locally; both are equally exact:
//! * every record is counted once in every window it belongs to, however often it is delivered,
//!   because each update is conditioned on the window's watermark, the newest position that the
//!   window is done with;
//! * a record that cannot be counted is kept in quarantine and the batch goes on;
//! * a write that fails is repeated while the invocation has time, if its failure is transient. If
//!   no attempt succeeds, Lambda delivers its records again;
//! * with alerts switched on, each threshold that a window reaches becomes one alert in the outbox.

mod alert_claims;
mod alert_partition;
mod answer;
#[cfg(feature = "aws-alerts")]
mod arn;
#[cfg(feature = "aws-alerts")]
mod aws_delivery;
mod backoff;
mod client;
mod cloud_event;
mod destination;
mod expressions;
mod invalid_destination;
#[cfg(feature = "lambda")]
mod metrics;
mod new_quarantine_entry;
mod outbox;
mod outcome;
mod outcome_builder;
mod processor;
mod quarantine;
mod recount;
mod regions;
mod report;
mod sender;
mod settings;
mod transact;
mod webhook;
mod window_writer;
mod write_error;

pub use client::{client, https_client, sdk_config};
pub use destination::Destination;
pub use invalid_destination::InvalidDestination;
#[cfg(feature = "lambda")]
pub use metrics::{Metrics, MetricsError};
pub use outbox::Deliveries;
pub use outcome::{Failure, HandleError, Outcome, Quarantined};
pub use processor::Processor;
pub use recount::{IfUnknown, Recounted};
pub use regions::{other_regions, region_warning};
pub use report::Report;
pub use settings::{BadRetention, Retention, Settings, SettingsError, Switch, is_region};
pub use sluicegate_core::{Layouts, StreamEvent};
pub use write_error::{chain, explain, one_line};
