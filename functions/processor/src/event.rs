//! The event as Lambda delivers it, with every record left as the text that it is.
//!
//! A record is parsed on its own, later: one odd record must not fail the others.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A DynamoDB stream event.
#[derive(Debug, Deserialize)]
pub struct StreamEvent {
    /// The records in stream order, as JSON.
    #[serde(rename = "Records")]
    pub records: Vec<Box<RawValue>>,
}
