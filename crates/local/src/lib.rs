//! Runs Sluicegate without AWS: a DynamoDB engine in this process, the table on it, and a poller
//! that feeds stream records to a handler as Lambda's event source mapping does.
//!
//! This crate decides nothing about tokens or usage. It hides the differences between the embedded
//! engine and DynamoDB, so that the deployed crates need not know that they run locally.

mod access;
pub mod client;
mod dispatch;
mod engine;
mod error;
mod function;
mod lock;
pub mod poller;
mod quirks;
mod read_once;
mod server;
mod sqlite;
mod stack;
pub mod table;

pub use access::is_loopback;
pub use engine::{EmbeddedEngine, Storage};
pub use error::{BoxError, Error};
pub use function::{InProcess, Observer};
pub use stack::{LocalLoop, LoopOptions};
