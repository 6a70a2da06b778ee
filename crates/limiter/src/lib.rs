//! Rate limiting on DynamoDB: acquire tokens from several limits of a user and a resource at once.
//!
//! All balances of one entity and one resource live in a single item, changed only by atomic `ADD`s
//! under conditions and refilled when they are looked at. Taking from ten limits is one write.
//!
//! ```
//! use sluicegate::{CompositeStore, Limit, Limiter, MemoryTable};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! // On DynamoDB: Limiter::new(DynamoStore::new(client, "sluicegate-limits"))
//! let limiter = Limiter::new(CompositeStore::with_table(MemoryTable::new()));
//! let lease = limiter
//!     .acquire("user-123", "gpt-4")
//!     .consume("rpm", 1)
//!     .consume("tpm", 500)
//!     .limits([Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 100_000).burst(200_000)])
//!     .await?;
//! lease.adjust("tpm", 1_240 - 500).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | entity | who is limited: a user, an API key, a project |
//! | resource | what is limited: a model, an API |
//! | limit | a name, so many tokens a period, and the burst: how many a full bucket holds |
//! | bucket | what one entity and one resource have left of all their limits: one item of the table |
//! | token | whatever a limit counts: a request, a token of text; balances are in thousandths |
//! | lease | tokens that were taken, to be corrected or given back |
//!
//! # On DynamoDB
//!
//! Make one [`Limiter`] when the process starts and clone it: clones share what is remembered, which
//! is what makes an acquire one write. [`dynamo::create_table`] makes the table where no template did.
//!
//! ```no_run
//! use std::time::Duration;
//! use sluicegate::{DynamoStore, Limiter};
//!
//! # async fn limiter() -> Result<(), sluicegate::AcquireError> {
//! let aws = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
//! let store = DynamoStore::new(aws_sdk_dynamodb::Client::new(&aws), "sluicegate-limits");
//! let limiter = Limiter::new(store).deadline(Duration::from_millis(500)); // 250 ms unless said
//! limiter.warm_up().await?; // or the first request waits for the connection
//! # Ok(())
//! # }
//! ```
//!
//! # Limits of tokens per minute
//!
//! A language model's answer has a length that nobody knows before it is there. Acquire what is
//! estimated, [`adjust`](Permit::adjust) while tokens arrive or once they are counted, and
//! [`release`](Permit::release) when the call failed:
//!
//! ```
//! # use sluicegate::{CompositeStore, Limit, Limiter, MemoryTable};
//! # struct Answer { tokens: i64 }
//! # async fn call_the_model() -> Result<Answer, std::io::Error> { Ok(Answer { tokens: 1_240 }) }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let limiter = Limiter::new(CompositeStore::with_table(MemoryTable::new()));
//! # let limits = [Limit::per_minute("tpm", 10_000)];
//! let estimate = 800; // the prompt's tokens and what an answer usually takes
//! let request = limiter.acquire("user-123", "gpt-4").consume("tpm", estimate).limits(limits);
//! let lease = request.await?;
//! match call_the_model().await {
//!     Ok(answer) => lease.adjust("tpm", answer.tokens - estimate).await?,
//!     Err(_) => lease.release().await?,
//! };
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An adjustment is never refused: a balance may go below zero, and the next acquires are refused
//! until it is earned back. Dropping a lease keeps what was taken; [`Limiter::adjust`] corrects a
//! bucket without one. [`wait_up_to`](AcquireRequest::wait_up_to) waits for tokens that come soon,
//! first come first served. The example `llm_streaming` adjusts while an answer streams.
//!
//! # Where limits come from
//!
//! A request names its [limits](AcquireRequest::limits), or they are stored in the table
//! ([`Limiter::set_limits`]) for an entity and a resource, an entity, a resource or everything; each
//! limit comes from the narrowest of these that names it. What is stored is remembered for a minute.
//! A bucket follows a change with its next refill: new limits start full, changed ones keep their
//! balance, deleted ones go. A process that has not seen the change yet adopts what it finds.
//!
//! # A user and the team behind it
//!
//! An entity can have a parent ([`Limiter::put_entity`], or
//! [`cascade_to`](AcquireRequest::cascade_to) in a request). Then tokens are taken from both buckets
//! or from neither, in one transaction; [`CascadeMode::Compensating`] is half the price and gives up
//! that nobody ever sees one without the other. A refusal names whose limit it was.
//!
//! # What can go wrong
//!
//! | [`AcquireError`] | what it means | a gateway answers |
//! |---|---|---|
//! | [`LimitExceeded`] | a limit is short; `retry_after` is exact | 429 |
//! | [`NeverAdmissible`] | more than a full bucket holds: waiting does not help | 400 |
//! | `Contended` | other writers or throttling until attempts ran out | 503 |
//! | `Unavailable` | no answer in time, or the store failed, and [`OnUnavailable`] does not grant without one | 503 |
//! | [`InvalidRequest`] | the program is wrong, names more limits than a bucket holds, or a client's name is illegal | 500, 400 |
//! | `Setup` | permissions, the table or an item must be repaired | 500 |
//!
//! An acquire ends by its [`deadline`](Limiter::deadline); waiting for tokens is not counted, nor is
//! giving back what one bucket of a compensating cascade gave.
//!
//! A write whose answer was lost is recognised in the item by its request id, so it is neither done
//! twice nor forgotten. When four others wrote in between the item no longer can tell: then an
//! acquire takes again (the restrictive side) and a refund is not repeated; both are
//! [counted](Counters). A refund that the item does not show is repeated; should the first attempt
//! still arrive, after four other writes, the tokens are given back twice. Every refund that was
//! repeated after a lost answer is therefore counted as ambiguous, too.
//!
//! A correction that fails can be repeated on the same [`Permit`], which remembers what it did in
//! each bucket: what is missing is done, and nothing twice
//! ([`AdjustError::may_be_repeated`]).
//!
//! # When the store is away
//!
//! A store is away that does not answer, or answers that it failed (HTTP 5xx). Then [`OnUnavailable`]
//! decides:
//!
//! | | an acquire | for whom |
//! |---|---|---|
//! | `Allow`, the default | is granted, and nothing is counted | a gateway whose first duty is its traffic |
//! | `Deny` | is `Unavailable` | where more than the limit costs more than an outage |
//! | `Local` | is decided by buckets of this process, by the limits that it brings or that were last known | a few processes that share the traffic |
//!
//! ```
//! use sluicegate::{CompositeStore, Limiter, MemoryTable, OnUnavailable};
//!
//! let store = CompositeStore::with_table(MemoryTable::new());
//! let limiter = Limiter::new(store).on_unavailable(OnUnavailable::Deny);
//! # drop(limiter);
//! ```
//!
//! A lease that was granted so says why ([`Permit::degraded`]). The store took nothing for it, so its
//! corrections do nothing and say so ([`Adjusted::degraded`]). Corrections of other leases, looks
//! and changes are errors while the store is away; those of a lease can be repeated later.
//!
//! Under `Local` a bucket starts with what the store said of it last, or full, and each process has
//! its own: together they may admit as many times what is there. What was consumed is taken from the
//! store when it answers again, as one correction for each bucket, of 10,000 buckets at most. A
//! request whose limits nobody in the process knows is `Unavailable`.
//!
//! The first calls of an outage wait for their deadline: 250 ms an acquire, or 2 s where there was
//! no connection yet, which [`Limiter::warm_up`] makes ahead. After five in a row, or two a second
//! apart, nobody waits: a [`BreakerConfig`] opens, and a call costs about a microsecond. A task looks for
//! the store every 250 ms. When a probe was answered one request is let through, and after its answer
//! all are: within a second of the store's return. An outage is logged when it is found and when it
//! is over, and always [counted](Counters).
//!
//! Whatever else the store says is an answer, and an error under every setting: limits that are
//! short, contention, throttling (`Contended` at the deadline), a missing permission or table, a
//! refusal for an unknown reason (`Setup`).
//!
//! # What it costs
//!
//! In DynamoDB's units, two or ten limits with ids of 32 bytes (an item of up to 1 KB):
//!
//! | | read | write |
//! |---|--:|--:|
//! | warm acquire; adjust; release | 0 | 1 |
//! | cold acquire of a bucket that exists | 1 | 1 |
//! | first acquire: the item, and its entry in the index of the resource | 1 | 2 |
//! | refused, from an image of up to a second ago | 0 | 0 |
//! | refused otherwise | 1 | 0 |
//! | with a parent, in a transaction; compensating | 0 | 4; 2 |
//! | the first refusal after limits changed: more, for each bucket | 0 to 1 | 1 |
//! | limits that another process learned first: more | 4 | 0 |
//!
//! An item takes about 1,000 writes a second, whatever the table: that is the ceiling of one bucket.
//!
//! # Buckets of older producers
//!
//! A table in which each limit had an item of its own is converted as it is used, or all at once by
//! `sluicegate migrate`. Until that is done, a store has to be told that there are such items:
//! `CompositeStore::with_table(DynamoTable::new(&client, "limits").converting_legacy())`. The first write to
//! a bucket then converts it; [`DynamoTable::convert`] does so by itself.
//!
//! # Trying limits out
//!
//! [`Limiter::shadow`] decides and counts on real traffic and refuses nothing;
//! [`peek`](Limiter::peek) looks without taking. [`Permit::cost`] says what a grant took,
//! [`Permit::remaining`] what is left, and every acquire is a `tracing` span. Tests of programs that
//! use a limiter need no engine: [`MemoryTable`] and [`TestClock`].
//!
//! # HTTP services
//!
//! The crate `sluicegate-tower` has a layer that acquires for each request and answers refusals: 429,
//! `Retry-After` and the rate limit fields.
//!
//! # On Redis
//!
//! With the feature `redis`, `Limiter::new(RedisStore::new("redis://127.0.0.1/")?)` is the same
//! limiter: everything above holds but what is said of stored limits, entities and units. The
//! module `redis` says what a bucket looks like there, which limits it counts exactly, and what a
//! cluster needs to know.

#[cfg(feature = "dynamodb")]
mod admin;
mod amounts;
mod call;
mod check;
mod clock;
mod composite;
mod counters;
mod degraded;
#[cfg(feature = "dynamodb")]
pub mod dynamo;
mod error;
mod guard;
#[cfg(feature = "leasing")]
mod leasing;
mod leasing_store;
mod limit;
mod limiter;
mod memory;
mod permit;
mod queue;
#[cfg(feature = "redis")]
pub mod redis;
mod request;
mod store;
mod store_error;
mod table;

pub use clock::{COARSE_RESOLUTION, Clock, SystemClock, TestClock};
pub use composite::{CascadeMode, Certainty, CompositeStore, Settings};
pub use counters::{Counter, Counters};
pub use degraded::{Cause, Degraded, OnUnavailable};
#[cfg(feature = "dynamodb")]
pub use dynamo::{DynamoStore, DynamoTable};
pub use error::{
    AcquireError, AdjustError, InvalidRequest, LimitExceeded, LimitStatus, NeverAdmissible,
};
pub use guard::BreakerConfig;
#[cfg(feature = "leasing")]
pub use leasing::{
    Accounting, LeaseMode, LeaseSettings, Leased, LeasedLimiter, Prepared, PreparedPermit,
    SettleReport,
};
pub use leasing_store::LeasingStore;
pub use limit::{InvalidLimit, Limit};
pub use limiter::{Limiter, Mode};
pub use memory::MemoryTable;
pub use permit::{Cost, Permit, Remaining};
pub use request::{AcquireRequest, AdjustRequest, PeekRequest};
pub use store::{Adjusted, BucketGrant, Cascade, Correction, Grant, Request, Store};
pub use store_error::{BoxError, SetupError, StoreFailure};
pub use table::{
    Cancelled, Consistency, ReadItems, Table, TableError, TransactError, WriteError, Written,
};

pub use sluicegate_core::keys::LimitsScope;
pub use sluicegate_core::{
    BucketId, ClaimInterval, CompositeBucket, EntityId, EntityRecord, EpochMillis, ItemError,
    LIMITS_MAX, LimitName, MillitokenSum, Millitokens, NameError, OutOfRange, Refill, RequestId,
    Resource, Rule, StoredLimits, UsageWindow, Wait, Window, WindowKind, WindowSpan, WritePath,
};

/// The examples of the project's front page compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
