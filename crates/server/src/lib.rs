//! Rate limits over the network: HTTP with JSON, and Envoy's rate limit service.
//!
//! A server holds a [`Limiter`](sluicegate::Limiter) and its [`Config`]. The command
//! `sluicegate serve` makes both from one file.

mod callers;
pub mod config;
mod envoy;
mod http;
mod metrics;
mod permit_id;
mod prices;
mod server;
mod start_error;
mod state;
mod tls;
mod traces;

pub use config::Config;
pub use metrics::install_metrics;
pub use server::{Reloader, Server};
pub use start_error::StartError;
pub use traces::SpanSender;
