//! What surrounds the decisions in the simulation and in the model checker: a table with one item,
//! an exact bucket beside each of its limits, and writers that drive the shipped decisions the way
//! the limiter does. Which step comes next is up to the caller: a seed or an exhaustive search.

#![allow(dead_code, unused_imports, reason = "each of the two tests uses a part")]

mod call;
mod control;
mod exact;
mod fixtures;
mod system;
mod table;

pub(crate) use call::{Call, Purpose};
pub(crate) use control::{CONTROLS, Control, IMPLIED};
pub(crate) use exact::{Timing, Violation};
pub(crate) use fixtures::{T0, at, bucket_id, milli, name, rule, stored};
pub(crate) use system::{Reply, Scenario, System, Tally, Writer, request_id};
pub(crate) use table::Table;
