//! How to use the limiter: where limits come from, what can go wrong, and what calls cost.
//!
//! Eleven short programs are examples of this crate, of `sluicegate-tower` and of
//! `sluicegate-prices`. The repository's page `docs/examples.md` lists them with their output.
//!
//! # On DynamoDB
//!
//! Make one [`Limiter`](crate::Limiter) when the process starts, and clone it. Clones share what
//! they remember of buckets, entities and stored limits; that is why a warm acquire is one write.
//! [`dynamo::create_table`](crate::dynamo::create_table) creates the table where no template does.
//!
//! ```no_run
//! use std::time::Duration;
//! use sluicegate::{DynamoStore, Limiter};
//!
//! # async fn limiter() -> Result<(), sluicegate::AcquireError> {
//! let aws = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
//! let store = DynamoStore::new(aws_sdk_dynamodb::Client::new(&aws), "sluicegate-limits");
//! // The default is 250 ms.
//! let limiter = Limiter::builder(store).deadline(Duration::from_millis(500)).build();
//! limiter.warm_up().await?; // otherwise the first request waits for the connection
//! # Ok(())
//! # }
//! ```
//!
//! # Limits on tokens per minute
//!
//! The length of a language model's answer is unknown until it has arrived. Acquire an estimate,
//! [`adjust`](crate::Permit::adjust) the permit while tokens arrive or after they are counted, and
//! [`release`](crate::Permit::release) it when the call failed:
//!
//! ```
//! # use sluicegate::{Limit, Limiter, MemoryStore};
//! # struct Answer { tokens: i64 }
//! # async fn call_the_model() -> Result<Answer, std::io::Error> { Ok(Answer { tokens: 1_240 }) }
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::new(MemoryStore::new());
//! # let limits = [Limit::per_minute("tpm", 10_000)];
//! let estimate = 800; // the prompt's tokens, and those of a usual answer
//! let request = limiter.acquire("user-123", "gpt-4").consume("tpm", estimate).limits(limits);
//! let permit = request.await?;
//! match call_the_model().await {
//!     Ok(answer) => permit.adjust("tpm", answer.tokens - estimate).await?,
//!     Err(_) => permit.release().await?,
//! };
//! # Ok(())
//! # }
//! ```
//!
//! The store never refuses an adjustment. A balance may go below zero; the next acquires are then
//! refused until refill has paid the debt. Dropping a permit keeps the consumption. Dropping the
//! future of an acquire takes nothing: if its write is under way, the next write on the bucket
//! gives the tokens back. If there is none before the process ends, they stay taken.
//! [`Limiter::adjust`](crate::Limiter::adjust) corrects a bucket without a permit; with a key
//! ([`once`](crate::request::AdjustRequest::once)), once in all processes, for four write units.
//! [`wait_up_to`](crate::AcquireRequest::wait_up_to) waits for tokens that refill soon; waiting
//! requests are served in order of arrival. The example `streaming` adjusts while an answer
//! streams.
//!
//! # Where limits come from
//!
//! A request names its [limits](crate::AcquireRequest::limits), the limiter has [default
//! limits](crate::LimiterBuilder::default_limits) for requests that name none, or the table stores
//! them ([`Limiter::set_limits`](crate::Limiter::set_limits)) at one of four levels: an entity and
//! a resource, an entity, a resource, or everything. Each limit comes from the narrowest level that
//! names it. A limiter remembers stored limits for a minute. A bucket follows a change with its
//! next refill: new limits start full, changed rates keep their balance up to the new burst,
//! deleted limits disappear. Quotas and calendar limits keep what was consumed instead, and a rate
//! that becomes one of them starts full. A process that has not seen the change yet adopts the
//! limits that it finds in the bucket.
//!
//! # A user and its team
//!
//! An entity can have a parent, stored ([`Limiter::put_entity`](crate::Limiter::put_entity)) or
//! named in a request ([`cascade_to`](crate::AcquireRequest::cascade_to)). An acquire then takes
//! from both buckets or from neither, in one transaction.
//! [`CascadeMode::Compensating`](crate::settings::CascadeMode::Compensating) costs half as much; in
//! exchange, another process may see one bucket debited before the other. A refusal names the
//! entity whose limit is short.
//!
//! # Leasing: most requests without a call
//!
//! A limiter that leases takes tokens ahead of need and grants requests from them in memory. Each
//! process writes to a busy bucket a handful of times a second, at any rate of requests. Leasing
//! saves nothing on buckets with less than a request a second.
//!
//! ```
//! use std::time::Duration;
//! use sluicegate::{LeaseSettings, Limit, Limiter, MemoryStore};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let limiter = Limiter::builder(store).leasing(LeaseSettings::default()).build();
//! let limits = [Limit::per_minute("rpm", 60_000)];
//! limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(limits.clone()).await?; // as before
//!
//! // A prepared call is built once; each use is a few atomic operations.
//! let call = limiter.acquire("user-123", "gpt-4").consume("rpm", 1).limits(limits).no_cascade();
//! let call = call.prepare().await?;
//! let permit = call.acquire().await?; // or call.acquire_for("user-456")
//! permit.release(); // gives the tokens back in memory
//!
//! let report = limiter.shutdown(Duration::from_secs(5)).await; // gives back unused tokens
//! assert!(report.unsettled.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! Leasing never over-admits. A process that is killed loses the tokens that it held. With
//! [`LeaseMode::WriteBehind`](crate::LeaseMode::WriteBehind), a process grants first and debits the
//! bucket later, within a threshold for each process. [`LeaseMode`](crate::LeaseMode) says what
//! each mode guarantees and what a crash costs.
//!
//! # Errors
//!
//! | [`AcquireError`](crate::AcquireError) | meaning | a gateway answers |
//! |---|---|---|
//! | [`LimitExceeded`](crate::LimitExceeded) | a limit is short; `retry_after` is exact | 429 |
//! | [`NeverAdmissible`](crate::error::NeverAdmissible) | the request asks for more than a full bucket holds: waiting does not help | 400 |
//! | `Contended` | other writers or throttling used up all attempts or the deadline | 503 |
//! | `Unavailable` | the store did not answer in time or failed, and [`OnUnavailable`](crate::OnUnavailable) does not grant without it | 503 |
//! | [`InvalidRequest`](crate::error::InvalidRequest) | the program is wrong, names more limits than a bucket holds, or passes an illegal name | 500, 400 |
//! | `Setup` | an operator must repair permissions, the table or an item | 500 |
//!
//! After `Contended` and `Unavailable`, tokens may have been taken although nothing was granted.
//!
//! An acquire ends by its [`deadline`](crate::LimiterBuilder::deadline). The deadline does not
//! count time that a request waits for tokens, nor the time in which a compensating cascade gives
//! tokens back.
//!
//! # Lost answers
//!
//! Every write that takes tokens or corrects carries an id, and the bucket remembers the last four.
//! A write whose answer was lost is sent again under its id, and takes effect once as long as the
//! bucket remembers that id. After four other writes the bucket has forgotten the id. A write that
//! also fences a lost write leaves at least two ids in the bucket, so two such writes are enough.
//!
//! While the bucket can still tell that a lost refund was not made, the limiter repeats it. The
//! lost attempt may arrive after the bucket has forgotten the id, and then the tokens are given
//! back twice. Therefore each such repetition raises the counter
//! [`ambiguous`](crate::store::Counters), also that of a lease or a correction that gives back more
//! of a limit than it takes.
//!
//! Once the bucket has forgotten the id, a refund is not repeated, and an acquire takes its tokens
//! again, which errs on the restrictive side. Both raise the counter, too.
//!
//! A correction that fails can be repeated on the same [`Permit`](crate::Permit). The permit
//! remembers what it did in each bucket and completes what is missing
//! ([`AdjustError::may_be_repeated`](crate::AdjustError::may_be_repeated)). It does nothing twice
//! while the bucket remembers the id of a debit whose answer was lost; after that, the debit may be
//! made twice.
//!
//! # While the store is unavailable
//!
//! A store is unavailable if it does not answer, or answers that it failed (of HTTP: 5xx, but not
//! 501).
//! [`OnUnavailable`](crate::OnUnavailable) then decides:
//!
//! | policy | an acquire | suits |
//! |---|---|---|
//! | `Allow`, the default | is granted and not counted | a gateway that must serve its traffic |
//! | `Deny` | fails with `Unavailable` | a limit whose excess costs more than an outage |
//! | `Local` | is decided by buckets of this process, with the limits of the request or those last known | a few processes that share the traffic |
//!
//! ```
//! use sluicegate::{Limiter, MemoryStore, OnUnavailable};
//!
//! let store = MemoryStore::new();
//! let limiter = Limiter::builder(store).on_unavailable(OnUnavailable::Deny).build();
//! # drop(limiter);
//! ```
//!
//! A permit that was granted without the store says why
//! ([`Permit::degraded`](crate::Permit::degraded)). Its corrections change nothing, and say so
//! ([`Adjusted::degraded`](crate::request::Adjusted::degraded)): the store took nothing for it, or
//! under `Local` is later debited what the request asked for. Corrections of other permits, peeks
//! and changes of stored limits fail while the store is unavailable; a permit's correction can be
//! repeated later.
//!
//! Under `Local`, a bucket starts with the balance of the store's last grant, or full; corrections
//! since that grant are not subtracted. Each limiter has its own copy, so N limiters, or processes
//! with one each, may admit up to N times the balance. When the store answers again, the limiter
//! takes the consumption from it, as one correction for each bucket, of up to 10,000 buckets. A
//! request whose limits are unknown to the process fails with `Unavailable`.
//!
//! The first calls of an outage wait for their deadline: 250 ms for an acquire, or 2 s while there
//! is no connection yet ([`Limiter::warm_up`](crate::Limiter::warm_up) makes one ahead). If a
//! caller leaves before its deadline, the limiter probes the store in its place. After five
//! failures in a row, or two that are a second apart, the circuit breaker opens
//! ([`BreakerConfig`](crate::settings::BreakerConfig)) and a decision takes about a microsecond. A
//! task probes the store every 250 ms. After an answered probe the limiter lets one request
//! through, and after the answer to that request all of them: within a second of the store's
//! return. The limiter logs the start and the end of an outage and [counts](crate::store::Counters)
//! each decision made without the store.
//!
//! Any other answer of the store is an answer, and an error under every policy: short limits,
//! contention, throttling (`Contended` at the deadline), a missing permission or table, a refusal
//! for an unknown reason (`Setup`).
//!
//! # What calls cost
//!
//! In DynamoDB units, for two or ten limits with ids of 32 bytes (an item of up to 1 KB):
//!
//! | call | read | write |
//! |---|--:|--:|
//! | warm acquire; adjust; release | 0 | 1 |
//! | cold acquire of a bucket that exists | 1 | 1 |
//! | first acquire: the item, and its entry in the index of the resource | 1 | 2 |
//! | refused by a copy of the bucket that is at most a second old | 0 | 0 |
//! | refused otherwise | 1 | 0 |
//! | with a parent, in a transaction; compensating | 0 | 4; 2 |
//! | in addition, for each bucket: the first refusal after limits changed | 0 to 1 | 1 |
//! | in addition: limits that another process learned first | 4 | 0 |
//! | in addition, every 250 ms at most: a caller leaves before the answer | 0.5 | 0 |
//!
//! Requests of one process that wait for the same bucket share a write and divide its cost.
//! An item takes about 1,000 writes a second, whatever the table: the ceiling of one bucket for all
//! processes together.
//!
//! # Buckets of older producers
//!
//! In an older layout, each limit had an item of its own. A limiter converts such a bucket with its
//! first write, or `sluicegate migrate` converts all of them. Until all are converted, tell the
//! table that older items exist:
//! `CompositeStore::with_table(DynamoTable::new(&client, "limits").converting_legacy())`.
//! [`DynamoTable::convert`](crate::dynamo::DynamoTable::convert) converts one bucket.
//!
//! # Trying limits out
//!
//! [`LimiterBuilder::shadow`](crate::LimiterBuilder::shadow) decides and counts on real traffic and
//! refuses nothing. [`peek`](crate::Limiter::peek) reads a bucket without taking.
//! [`Permit::cost`](crate::Permit::cost) says what a grant cost,
//! [`Permit::remaining`](crate::Permit::remaining) what is left, and every acquire is a `tracing`
//! span at INFO. (A filter that wants these spans by name or field alone misses those of requests
//! that took leased tokens.) Tests of programs that use a limiter need no engine: see
//! [`MemoryStore`](crate::MemoryStore) and [`TestClock`](crate::TestClock).
//!
//! # HTTP services
//!
//! The layer of the crate `sluicegate-tower` acquires for each request and answers refusals: 429,
//! `Retry-After` and the rate limit fields.
//!
//! # Metrics
//!
//! A limiter reports to the recorder of the `metrics` facade that the program installs before the
//! first request. No label is an entity. Beyond 1,000 pairs of a resource and a limit, both labels
//! of further ones are `other`.
//!
//! | metric | labels | meaning |
//! |---|---|---|
//! | `sluicegate_acquires_total` | resource, limit, outcome | requested limits by outcome: granted, refused (the limit was short), not_taken (another limit was), never_admissible, contended, unavailable, failed, degraded, shadowed |
//! | `sluicegate_near_limit_total` | resource, limit | grants that left a limit with no more than the [`near_share`](crate::LimiterBuilder::near_share) |
//! | `sluicegate_store_duration_seconds` | operation | time of an acquire, correct or peek that asked the store, waiting for its turn and repetitions included |
//! | `sluicegate_write_units_total`, `sluicegate_read_units_total` | | capacity units of buckets and of stored limits, in whole units |
//! | `sluicegate_breaker_open` | | 1 while the store is unavailable and is not asked |
//! | `sluicegate_leased_decisions_total` | | decisions by leased tokens |
//! | `sluicegate_lease_waits_total` | | requests that waited for a lease |
//! | `sluicegate_lease_writes_total` | | writes that lease and settle |
//! | `sluicegate_leased_tokens_total`, `sluicegate_unused_tokens_total` | | whole tokens that were leased, and those that went back unused |
//! | `sluicegate_lease_write_reduction` | | the share of decisions that needed no write |
//! | `sluicegate_lease_ambiguous_total` | | leases whose outcome could not be found out |
//! | `sluicegate_commit_age_seconds` | | in write-behind mode, the age of the oldest use at its debit |
//!
//! # On Redis
//!
//! With the feature `redis`, `Limiter::new(RedisStore::new("redis://127.0.0.1/")?)` is the same
//! limiter. The guide holds for it, except for stored limits, entities and units. The module
//! `redis` describes a bucket's value, the limits that it counts exactly, encrypted connections, and
//! the needs of a cluster.
