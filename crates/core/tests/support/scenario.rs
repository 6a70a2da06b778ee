//! The parts of a run: its settings, its callers and requests, the writes in flight.

use std::sync::Arc;

use sluicegate_core::{Amounts, Configuration, RequestId, WritePlan};

use super::control::Control;
use super::exact::Timing;

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Takes, or is refused.
    Acquire,
    /// Corrects, under conditions on the balance.
    Adjust,
    /// Corrects, as a last resort.
    Forced,
    /// Takes nothing: brings back a timestamp that is ahead, or limits to an item.
    Repair,
}

/// The settings of a run.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) timing: Timing,
    /// The configurations that processes may know.
    pub(crate) configurations: Vec<Arc<Configuration>>,
    /// Conditions to leave out.
    pub(crate) without: Option<Control>,
    /// The mistake of the driver of a queue.
    pub(crate) mistake: Option<Mistake>,
}

/// The mistakes of a driver: the tests find each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// It does not tell the queue of a caller that leaves: its share is not given back.
    ForgetsWhoLeft,
    /// After a lost answer it decides one of the requests anew, by itself.
    ResolvesOneAlone,
    /// It passes off the image that a write is expected to leave as one that the table returned.
    InventsImages,
}

/// One task of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    pub(crate) process: usize,
    pub(crate) request: Option<Request>,
}

/// A request that waits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) purpose: Purpose,
    pub(crate) amounts: Amounts,
    pub(crate) id: RequestId,
}

/// A write in flight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    /// The purpose, which decides the conditions that matter.
    pub(crate) purpose: Purpose,
    pub(crate) id: RequestId,
    /// The requests that it carries, but for what it gives back.
    pub(crate) requests: Vec<Request>,
    pub(crate) plan: WritePlan,
    pub(crate) decided_ms: i64,
    /// The process that waits for the reply; `None`: it no longer waits.
    pub(crate) waiting: Option<usize>,
}

/// The fate of the reply to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Delivered,
    Lost,
}

/// The number of events of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tally {
    pub(crate) granted: u32,
    pub(crate) refused: u32,
    pub(crate) corrected: u32,
    /// Writes that carried more than one request.
    pub(crate) combined: u32,
}
