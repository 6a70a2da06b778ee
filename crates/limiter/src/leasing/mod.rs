//! Decides requests in the process: tokens are leased ahead of need and handed out by a few atomic
//! operations, with few writes to the store.
//!
//! [`LimiterBuilder::leasing`](crate::LimiterBuilder::leasing) says all that users need to know.

mod atomic_bucket;
mod behind;
mod bucket_ledger;
mod engine;
mod evict;
mod found;
mod held;
mod keys;
mod lease_plan;
mod leased;
mod leased_bucket;
mod leased_part;
mod limit_ledger;
mod metrics;
mod moment;
mod names;
mod need;
mod plan_lease;
mod prepared;
mod setting;
mod settings;
mod spent;
mod store;
mod strict;
mod sync;
mod times;
mod waiters;
mod watch;

pub use self::leased::Leased;
pub use self::prepared::{Prepared, PreparedPermit};
pub use self::settings::{Accounting, LeaseMode, LeaseSettings};
pub use self::watch::SettleReport;
pub use crate::leasing_store::LeasingStore;
