//! Attribute names of a usage window.

use crate::{LimitName, StreamLabel};

/// The number of stream records that a usage window counted.
pub const EVENTS: &str = "events";

/// The attribute of one limit in a usage window.
#[must_use]
pub fn usage_attribute(limit: &LimitName) -> String {
    format!("u_{limit}")
}

/// The limit of a usage attribute, not checked yet.
#[must_use]
pub fn parse_usage_attribute(attribute: &str) -> Option<&str> {
    attribute.strip_prefix("u_")
}

/// The watermark: the attribute of a usage window that holds the newest position of one stream that
/// the window is done with. The record at that position was counted or quarantined.
///
/// A stream delivers the records of one item in order, and those of several items in any order. So
/// each shard of a bucket has a watermark of its own.
#[must_use]
pub fn watermark_attribute(stream: &StreamLabel, shard: Option<u32>) -> String {
    match shard {
        None => format!("wm_{stream}"),
        Some(shard) => format!("wm_{stream}#{shard}"),
    }
}
