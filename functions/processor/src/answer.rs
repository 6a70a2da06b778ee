//! The table's answer to one write to a window, and the watermark in it.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{AttributeValue, ConsumedCapacity};
use sluicegate_core::{SequenceNumber, WindowGroup};

use crate::write_error::WriteError;

/// The units of a failed condition, a lower bound: it costs as much as the write, and its answer
/// does not name the units.
pub(crate) const FAILED_CONDITION_UNITS: f64 = 1.0;

/// The item of a usage window.
pub(crate) type WindowItem = HashMap<String, AttributeValue>;

/// The table's answer to one write, or the reason why the write failed.
pub(crate) enum WriteAnswer {
    Done {
        write_units: f64,
        /// The window's item after the write, if the request asked for it.
        item: Option<WindowItem>,
    },
    /// The window's condition refused the write. The window is done with the records up to this
    /// watermark: it counted them, or they went to quarantine.
    ConditionFailed {
        watermark: SequenceNumber,
        /// The window's item as the condition found it.
        item: Option<WindowItem>,
    },
    /// The write failed, or nothing tells whether it was done.
    FailedOrLost(WriteError),
}

impl WriteAnswer {
    /// The answer of a write that was done, with its units. An answer without units counts as lost.
    pub(crate) fn done_or_lost(units: Option<f64>, item: Option<WindowItem>) -> Self {
        match units {
            Some(write_units) => Self::Done { write_units, item },
            None => Self::FailedOrLost(WriteError::empty_answer()),
        }
    }

    /// The answer to a write whose condition failed; it holds the window's item.
    pub(crate) fn of_failed_condition(item: Option<&WindowItem>, group: &WindowGroup<'_>) -> Self {
        match watermark(item, group) {
            Ok(Some(watermark)) => Self::ConditionFailed { watermark, item: item.cloned() },
            Ok(None) => Self::FailedOrLost(broken(group, "not in the table's answer")),
            Err(error) => Self::FailedOrLost(error),
        }
    }
}

/// The units of a write; `None` if the answer lacks them, though every write asks for them.
pub(crate) fn units(capacity: Option<ConsumedCapacity>) -> Option<f64> {
    capacity.map(|capacity| capacity.capacity_units.unwrap_or(0.0))
}

/// The watermark in a window's item; `None` if the window is not done with any record of this
/// bucket's item in this stream.
pub(crate) fn watermark(
    item: Option<&WindowItem>,
    group: &WindowGroup<'_>,
) -> Result<Option<SequenceNumber>, WriteError> {
    let value = item.and_then(|item| item.get(&group.watermark_attribute()));
    let Some(value) = value else { return Ok(None) };
    let digits = value.as_s().map_err(|_| broken(group, "not a string"))?;
    SequenceNumber::parse(digits).map(Some).map_err(|bad| broken(group, &bad.to_string()))
}

fn broken(group: &WindowGroup<'_>, reason: &str) -> WriteError {
    let (key, watermark) = (group.key(), group.watermark_attribute());
    WriteError::NeedsOperator(format!(
        "the watermark {watermark} of {} / {} is {reason}: repair this attribute; deleting the \
         item would lose its usage",
        key.pk(),
        key.sk()
    ))
}
