//! Rate limiting on DynamoDB: acquire tokens from several limits of a user and a resource at once.
//!
//! * [`Limit`] says what is allowed.
//! * [`Clock`] tells the time, of the system or of a test.

mod clock;
mod limit;

pub use clock::{Clock, SystemClock, TestClock};
pub use limit::{BadLimit, Limit};
pub use sluicegate_core::{
    EntityId, EpochMillis, LimitName, Millitokens, NameError, OutOfRange, Resource, Rule,
};
