//! The surroundings of the decisions in the simulation and in the model checker: a table with one item,
//! an exact bucket beside each of its limits, and processes that drive the very queue that the
//! limiter drives. Which step comes next is up to the caller: a seed or an exhaustive search.

#![allow(dead_code, unused_imports, reason = "each of the two tests uses a part")]

mod control;
mod exact;
mod fixtures;
mod scenario;
mod system;
mod table;

pub(crate) use control::{CONTROLS, Control, IMPLIED};
pub(crate) use exact::{Timing, Violation};
pub(crate) use fixtures::{T0, at, bucket_id, by_calendar, milli, name, rule, stored};
pub(crate) use scenario::{Caller, Mistake, Purpose, Reply, Request, Scenario, Tally};
pub(crate) use system::{Process, System, request_id};
pub(crate) use table::Table;
