//! The limiter over every engine under test, over the table in memory that the model shares, and
//! over Redis.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests panic, and say what they measured"
)]

mod bad_input;
mod basics;
mod budget;
mod calendar;
mod cascade;
mod changed;
mod configuration;
mod corrections;
mod costs;
mod costs_shared;
mod crowded;
mod defaults;
mod doubt;
mod dropped;
mod extremes;
mod faults;
mod followed;
mod intercept;
mod leased;
mod left_out;
mod legacy;
mod listed;
mod metering;
mod once;
mod outrun;
mod rush;
mod scripted;
mod set_back;
mod simulated;
mod stress;
mod support;
mod unanswered;
mod unavailable;
mod waiting;
