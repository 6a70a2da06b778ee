//! Rate limits over the network: HTTP with JSON, and Envoy's rate limit service.
//!
//! A server holds a [`Limiter`](sluicegate::Limiter) and its [`Config`]. The command
//! `sluicegate serve` makes both from one file.

pub mod config;
mod envoy;
mod http;

pub use config::Config;
