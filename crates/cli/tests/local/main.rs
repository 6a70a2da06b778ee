//! `sluicegate local` as its users see it: its output, its end, and the data that a kill leaves.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod killed;
mod process;
mod producers;
mod rate;
mod talk;
