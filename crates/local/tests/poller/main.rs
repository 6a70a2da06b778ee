//! The poller against scripted handlers and sources, and over the embedded engine's stream.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod delivery;
mod script;
mod stream;
