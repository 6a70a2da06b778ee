//! The requests of this crate to DynamoDB, on every engine under test.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod readers;
mod stored;
mod table;

use sluicegate::EntityId;
use sluicegate_testkit::on_every_engine;

fn entity(name: &str) -> EntityId {
    EntityId::new(name).unwrap()
}
