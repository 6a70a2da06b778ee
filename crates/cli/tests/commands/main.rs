//! The commands as a person or a script sees them: the real binary against engines on loopback.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod acquire;
mod alerts;
mod budget;
mod configured;
mod connection;
mod help;
mod migrate;
mod migrated;
mod quarantine;
mod support;
mod table;
mod unseen;
mod usage;
mod usage_check;
mod usage_export;
mod usage_export_s3;
