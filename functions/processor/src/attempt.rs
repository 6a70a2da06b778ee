//! One write to a window: its inputs, its result, and the watermark in an answer.

use std::collections::HashMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, ConsumedCapacity};
use sluicegate_core::{SequenceNumber, WindowFold, keys};
use tokio::time::Instant;

use crate::refusal::Refusal;
use crate::settings::Settings;

/// The inputs for settling one window.
#[derive(Clone, Copy)]
pub(crate) struct WindowWriter<'a> {
    pub(crate) client: &'a Client,
    pub(crate) settings: &'a Settings,
    pub(crate) fold: &'a WindowFold<'a>,
    pub(crate) now_s: i64,
    pub(crate) deadline: Instant,
}

/// The cost of a refused condition is that of the write: at least this, and the answer does not
/// name more.
pub(crate) const REFUSED_UNITS: f64 = 1.0;

/// The result of one write.
pub(crate) enum Attempt {
    /// Done, at this many write units.
    Done(f64),
    /// The guard refused: records up to this position were settled before.
    Behind(SequenceNumber),
    Refused(Refusal),
}

impl Attempt {
    /// The result of an answer with these units; `None`: the answer does not name them.
    pub(crate) fn of_answer(units: Option<f64>) -> Self {
        units.map_or_else(|| Self::Refused(Refusal::empty_answer()), Self::Done)
    }
}

/// The units of a write; every write asks for them.
pub(crate) fn units(capacity: Option<ConsumedCapacity>) -> Option<f64> {
    capacity.map(|capacity| capacity.capacity_units.unwrap_or(0.0))
}

/// Reads a refused guard: the watermark of the item in the answer.
pub(crate) fn behind(
    item: Option<&HashMap<String, AttributeValue>>,
    fold: &WindowFold<'_>,
) -> Attempt {
    match watermark(item, fold) {
        Ok(Some(position)) => Attempt::Behind(position),
        Ok(None) => Attempt::Refused(broken(fold, "not in the table's answer")),
        Err(refusal) => Attempt::Refused(refusal),
    }
}

/// The watermark in a window's item; `None` if the window has counted nothing of the stream.
pub(crate) fn watermark(
    item: Option<&HashMap<String, AttributeValue>>,
    fold: &WindowFold<'_>,
) -> Result<Option<SequenceNumber>, Refusal> {
    let value = item.and_then(|item| item.get(&keys::watermark_attribute(fold.stream())));
    let Some(value) = value else { return Ok(None) };
    let digits = value.as_s().map_err(|_| broken(fold, "not a string"))?;
    SequenceNumber::parse(digits).map(Some).map_err(|bad| broken(fold, &bad.to_string()))
}

fn broken(fold: &WindowFold<'_>, why: &str) -> Refusal {
    let (key, watermark) = (fold.key(), keys::watermark_attribute(fold.stream()));
    Refusal::Setup(format!(
        "the watermark {watermark} of {} / {} is {why}: repair or delete the item",
        key.pk(),
        key.sk()
    ))
}
