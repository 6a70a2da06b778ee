//! Rate limiting on DynamoDB: acquire tokens from several limits of a user and a resource at once.
//!
//! * [`Limit`] says what is allowed.
//! * [`Clock`] tells the time, of the system or of a test.

mod admin;
mod clock;
mod composite;
mod counters;
pub mod dynamo;
mod error;
mod lease;
mod limit;
mod limiter;
mod memory;
mod queue;
mod request;
mod store;
mod table;

pub use clock::{Clock, SystemClock, TestClock};
pub use composite::{CascadeMode, CompositeStore, Settings};
pub use counters::{Counter, Counters};
pub use dynamo::DynamoTable;
pub use error::{
    AcquireError, AdjustError, InvalidRequest, LimitExceeded, LimitStatus, NeverAdmissible,
};
pub use lease::{Cost, Lease, Remaining};
pub use limit::{BadLimit, Limit};
pub use limiter::{Limiter, Mode};
pub use memory::MemoryTable;
pub use request::{AcquireRequest, LIMITS_MAX, PeekRequest};
pub use store::{Adjusted, Cascade, Correction, Grant, Part, Request, Store};
pub use table::{
    BothError, Cancelled, Consistency, ReadItems, SetupError, Table, Trouble, WriteError, Written,
};

/// Balances on DynamoDB.
pub type DynamoStore = CompositeStore<DynamoTable>;

/// An error of somebody else.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub use sluicegate_core::keys::LimitsScope;
pub use sluicegate_core::{
    BucketId, ClaimInterval, CompositeBucket, EntityId, EntityRecord, EpochMillis, ItemError,
    LimitName, Millitokens, NameError, OutOfRange, Refill, Resource, Rule, StoredLimits,
    UsageWindow, Wait, Window, WindowKind, WindowSpan, WritePath,
};
