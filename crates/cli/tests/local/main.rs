//! `sluicegate local` as its users see it: what it prints, how it stops, and what is left of it when
//! it is killed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod killed;
mod process;
mod producers;
mod rate;
mod talk;
