//! Decides requests in the process: tokens are leased ahead of need and handed out by a few atomic
//! operations, with few writes to the store.
//!
//! [`LimiterBuilder::leasing`](crate::LimiterBuilder::leasing) says all that users need to know.

mod atomic_bucket;
mod behind;
mod bucket_ledger;
mod bucket_map;
mod builder_ext;
mod found;
mod held;
mod interner;
mod key_ref;
mod lease_plan;
mod leased;
mod leased_bucket;
mod leased_store;
mod leaser;
mod limit_ledger;
mod metrics;
mod moment;
mod need;
mod planning;
mod prepared;
mod prepared_permit;
mod remembered;
mod request_buckets;
mod settings;
mod strict;
mod sync;
mod times;
mod waiters;
mod watch;

pub use self::leased::Leased;
pub use self::prepared::Prepared;
pub use self::prepared_permit::PreparedPermit;
pub use self::settings::{Accounting, LeaseMode, LeaseSettings};
pub use self::watch::SettleReport;
pub use crate::leasing_store::LeasingStore;
