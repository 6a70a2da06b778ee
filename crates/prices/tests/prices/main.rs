//! Prices and usages as a program meets them: responses of providers, price lists, costs.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests panic")]

mod book;
mod lists;
mod litellm;
mod properties;
mod responses;
mod samples;
