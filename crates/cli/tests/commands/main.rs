//! The commands as a person or a script sees them: the real binary against engines on loopback.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod acquire;
mod connection;
mod support;
mod table;
