//! The token counts of LLM requests, read from their responses.
//!
//! [`Usage`] are the token counts of a request. [`Usage::from_response`] reads them from a response,
//! and [`UsageReader`] from a stream of events.

mod reader;
mod response;
mod usage;

pub use reader::UsageReader;
pub use response::UsageError;
pub use usage::Usage;
