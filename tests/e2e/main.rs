//! End to end over every engine under test: the guarantees of the product, seen from outside.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod alert_deliveries;
mod alerts;
mod cost;
mod crash;
mod exactness;
mod quarantine;
mod quarantine_recount;
mod sharded;
mod streams;
mod support;
mod unavailable;
