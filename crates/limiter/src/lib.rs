//! Rate limiting on DynamoDB: acquire tokens from several limits of a user and a resource at once.
//!
//! * [`Limit`] says what is allowed.

mod limit;

pub use limit::{BadLimit, Limit};
pub use sluicegate_core::{LimitName, Millitokens, NameError, OutOfRange, Rule};
