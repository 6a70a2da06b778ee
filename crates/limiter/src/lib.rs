//! Rate limiting on DynamoDB or Redis: a program acquires tokens from several limits of an entity
//! and a resource at once.
//!
//! All balances of one entity and one resource live in a single item. Conditional writes change it;
//! the write that takes tokens also adds those that have accrued. One write takes from all
//! balances, up to 40.
//!
//! ```
//! use sluicegate::{Limit, Limiter, MemoryStore};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // On DynamoDB: Limiter::new(DynamoStore::new(client, "sluicegate-limits"))
//! let limiter = Limiter::new(MemoryStore::new());
//! let permit = limiter
//!     .acquire("user-123", "gpt-4")
//!     .consume("rpm", 1)
//!     .consume("tpm", 500)
//!     .limits([Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 100_000).burst(200_000)])
//!     .await?;
//! permit.adjust("tpm", 1_240 - 500).await?; // the answer used 1,240 tokens
//! # Ok(())
//! # }
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | entity | the party that is limited: a user, an API key, a project |
//! | resource | the thing that is limited: a model, an API |
//! | limit | a name, a number of tokens per period, and the burst: the tokens of a full bucket |
//! | bucket | the balances of all limits of one entity and one resource: one item of the table |
//! | token | the unit that a limit counts: a request, a token of text; balances are in thousandths |
//! | permit | the tokens that an acquire took; a program corrects it or gives it back |
//! | lease | tokens that a process took ahead of need, and decides about without a call |
//!
//! Start with [`Limiter`]. The [`guide`] says where limits come from, which errors there are, what
//! happens while the store is unavailable, how to lease, and what each call costs.

#[cfg(feature = "dynamodb")]
mod admin;
mod builder;
mod call;
mod check;
mod clock;
mod composite;
mod cost;
mod counters;
mod degraded;
#[cfg(feature = "dynamodb")]
pub mod dynamo;
pub mod error;
mod guard;
pub mod guide;
#[cfg(feature = "leasing")]
pub mod leasing;
#[cfg(feature = "leasing")]
mod leasing_store;
mod limit;
mod limit_set;
mod limiter;
mod lock;
mod memory;
mod memory_store;
mod permit;
mod program_metrics;
#[cfg(feature = "redis")]
pub mod redis;
pub mod request;
pub mod store;
mod store_error;
mod table;
mod turns;

pub use builder::LimiterBuilder;
pub use clock::{Clock, SystemClock, TestClock};
pub use composite::CompositeStore;
pub use degraded::OnUnavailable;
#[cfg(feature = "dynamodb")]
pub use dynamo::DynamoStore;
pub use error::{AcquireError, AdjustError, LimitExceeded, LimitStatus};
#[cfg(feature = "leasing")]
pub use leasing::{LeaseMode, LeaseSettings};
pub use limit::Limit;
pub use limit_set::LimitSet;
pub use limiter::Limiter;
pub use memory_store::MemoryStore;
pub use permit::Permit;
pub use request::AcquireRequest;
pub use sluicegate_core::{EntityId, Resource};

/// The values of a limiter's settings.
pub mod settings {
    pub use crate::composite::{CascadeMode, Certainty, StoreSettings};
    pub use crate::guard::BreakerConfig;
    pub use crate::limiter::Mode;
    pub use crate::store::Cascade;
}

/// Names, amounts, rules, and the items of a table.
pub mod types {
    pub use crate::clock::COARSE_RESOLUTION;
    pub use sluicegate_core::keys::LimitsScope;
    pub use sluicegate_core::{
        Alert, AlertSettings, AmountOf, Amounts, BucketId, Calendar, CalendarPeriod,
        CalendarRefill, ClaimInterval, CompositeBucket, Currency, Debt, EntityRecord, EpochMillis,
        LIMITS_MAX, LimitName, MillitokenSum, Millitokens, OutboxEntry, OutboxState, Refill,
        RequestId, Rule, StoredLimits, Threshold, Thresholds, UsageWindow, Wait, Window,
        WindowKind, WindowSpan, WritePath, Zone,
    };
}

/// The examples of the project's front page compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
