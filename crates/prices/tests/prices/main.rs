//! Usages as a program meets them: in responses of providers.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests panic")]

mod properties;
mod responses;
mod samples;
