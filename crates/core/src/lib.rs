//! The core of Sluicegate, free of I/O: schema, token arithmetic, deltas and usage windows.
//!
//! This crate defines the meaning of every item of the table. The other crates read and write the
//! table. No function of this crate performs I/O, reads a clock or awaits: the caller passes the
//! time as an argument, and every result is a value.
//!
//! * [`keys`] spells and parses every key and attribute name of the table.
//! * [`CompositeBucket`] is the one item that holds all balances of an entity and a resource.
//! * [`StoredLimits`] and [`EntityRecord`] are the configuration in the table.
//! * [`Rule`] and [`Refill`] hold the token arithmetic: accrual, effective balance, exact waits.
//! * [`WriteQueue`] decides for requests of one process on a bucket: acquires, corrections and
//!   leases share its writes. Each write is a [`WritePlan`]: changes of the item and their
//!   conditions.
//! * [`decide`] is the same decision for one request alone; the buckets of an outage use it.
//! * [`LegacyBucket`] is a bucket in the older layout. It converts to a [`CompositeBucket`].
//! * [`Batch`] reads the records of a stream event. [`extract_deltas`] reads the consumption from
//!   one record.
//! * [`WindowState`] tells which [`Threshold`]s a usage window reached and did not claim.
//! * [`group_by_window`] groups the records of a batch by usage window;
//!   [`WindowGroup::next_update`] adds up a group's next update.
//!
//! ```
//! use sluicegate_core::{EpochMillis, Millitokens, Refill, Rule};
//!
//! // 60 requests a minute, at most 60 at once.
//! let rule = Rule::new(Millitokens::from_tokens(60)?, Refill::new(Millitokens::from_tokens(60)?, 60_000)?)?;
//! let emptied_at = EpochMillis::new(1_706_000_000_000)?;
//! let one_second_later = EpochMillis::new(1_706_000_001_000)?;
//! assert_eq!(rule.effective(Millitokens::ZERO, emptied_at, one_second_later).get(), 1_000);
//! # Ok::<(), sluicegate_core::OutOfRange>(())
//! ```

mod accrual;
mod acquire;
mod alert;
mod alone;
mod amounts;
mod batch;
mod bucket;
mod calendar;
mod claim;
mod clock;
mod configuration;
mod correction;
mod debit;
mod decide;
mod delta;
mod error_code;
mod excerpt;
mod expiry;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod item;
pub mod keys;
mod lease_size;
mod legacy;
mod money;
mod names;
mod plan;
mod quantity;
mod quarantine_entry;
mod queue;
mod record;
mod request;
mod rules_hash;
mod sequence;
mod span;
mod status;
mod stored;
mod time_point;
mod usage;
mod versions;
mod window;
mod window_group;

pub use accrual::{CalendarRefill, Debt, Refill, Rule, Wait};
pub use acquire::{Acquire, RefillHint};
pub use alert::{
    Alert, AlertRules, AlertSettings, InvalidThreshold, OutboxEntry, OutboxState, ShownThreshold,
    Threshold, Thresholds, WindowState, calendar_amounts,
};
pub use amounts::Amounts;
pub use batch::{Batch, Layouts, StreamEvent, UncountableRecord};
pub use bucket::{CompositeBucket, LimitBalance};
pub use calendar::{Calendar, CalendarPeriod, InvalidCalendar, UnknownZone, Zone};
pub use claim::ClaimInterval;
pub use clock::is_refill_time_ahead;
pub use configuration::{Configuration, LIMITS_MAX, Rules, StoredRules};
pub use decide::{Decision, decide, reconfigure};
pub use delta::{Delta, RecordDeltas, RecordError, extract_deltas, extract_shard_deltas};
pub use error_code::ErrorClass;
pub use expiry::extend;
pub use item::{ItemError, Scalar};
pub use lease_size::LeaseRange;
pub use legacy::convert::{Conversion, LEGACY_LIMITS_MAX, Removal, TooManyLimits, Unchanged};
pub use legacy::{LegacyBucket, LegacyLimit};
pub use money::{AmountOf, Currency, Money, parse_amount, whole_amount};
pub use names::{CorrectionKey, EntityId, LimitName, NameError, Resource};
pub use plan::{Change, Condition, WritePath, WritePlan};
pub use quantity::{EpochMillis, MillitokenSum, Millitokens, OutOfRange, rfc3339_s};
pub use quarantine_entry::{QuarantineEntry, QuarantineState};
pub use queue::{
    Action, Answer, BucketDemand, ContentionEstimate, Counts, Done, KnownImage, LeaseTerms,
    Outcome, Purpose, QueueSettings, QueuedRequest, StateOnLeave, Write, WriteQueue,
};
pub use record::{EventName, Image, StreamRecord};
pub use request::{BucketId, RequestId};
pub use rules_hash::RulesHash;
pub use sequence::{BadSequenceNumber, BadStreamArn, SequenceNumber, StreamLabel};
pub use span::WindowSpan;
pub use status::{LimitStatus, evaluate};
pub use stored::{EntityRecord, StoredLimits, rule_attributes};
pub use time_point::{InvalidTimePoint, TimePoint};
pub use usage::UsageWindow;
pub use versions::{ConfigStamp, LevelVersions, Recency};
pub use window::{InvalidWindowKind, Window, WindowKind, WindowKinds};
pub use window_group::{GroupedBatch, WindowGroup, WindowUpdate, group_by_window};
