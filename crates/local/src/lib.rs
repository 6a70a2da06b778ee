//! What a Sluicegate needs to run without AWS: a DynamoDB engine in this process, the table on it,
//! and a poller that feeds stream records to a handler as Lambda's event source mapping does.
//!
//! Nothing in here decides about tokens or usage. Differences between the embedded engine and
//! DynamoDB are evened out in this crate, so that the crates which are deployed never know that
//! they were run locally.

pub mod client;
mod dispatch;
mod engine;
mod error;
mod function;
mod guard;
mod lock;
pub mod poller;
mod quirks;
mod server;
mod sqlite;
mod stack;
pub mod table;

pub use engine::{EmbeddedEngine, Storage};
pub use error::{BoxError, Error};
pub use function::{InProcess, Observer};
pub use guard::is_loopback_host;
pub use stack::{LocalLoop, LoopOptions};
