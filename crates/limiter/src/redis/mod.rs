//! Balances on Redis: one string for each bucket; each call runs one script.
//!
//! ```no_run
//! use sluicegate::redis::RedisStore;
//! use sluicegate::{Limit, Limiter};
//!
//! # async fn gateway() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::new(RedisStore::new("redis://127.0.0.1/")?);
//! let limits = [Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 100_000)];
//! let ask = limiter.acquire("user-123", "gpt-4").consume("rpm", 1).consume("tpm", 500);
//! let permit = ask.limits(limits).await?;
//! permit.adjust("tpm", 740).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # A bucket
//!
//! The key is `sluicegate:{user-123}#gpt-4`. Its value is binary, because a script spends more time
//! on converting numbers to text and back than on a decision. It holds the balance and the
//! consumption of each limit, the time at which refill was last counted for all of them, the rules,
//! the ids of the last four requests, and the amounts of remembered leases. [`RedisStore::bucket`]
//! reads it; in a terminal, `show.lua` in this crate's `src/redis/lua` prints it:
//!
//! ```text
//! $ redis-cli --eval show.lua 'sluicegate:{user-123}#gpt-4'
//!  1) "ids"
//!  2) "3oNSuBpzJU"
//!  3) "lastRefill"
//!  4) "1769608800000"
//!  5) "tokens:rpm"
//!  6) "97000"
//! ```
//!
//! All numbers are whole millitokens and milliseconds.
//!
//! A bucket expires twice the fill time of its slowest limit after its last write. A debt lengthens
//! that time. A bucket with a limit that never refills does not expire. An expired bucket counts as
//! a full one. A server that evicts keys when its memory is full therefore forgets debts: let it
//! refuse writes instead (`maxmemory-policy noeviction`).
//!
//! # Exactness and ranges
//!
//! A script is atomic: it counts the refill, checks every limit and takes, all or nothing, from a
//! child's and its parent's bucket too. Its numbers are doubles, so the store refuses some limits
//! before any call, with [`InvalidRequest::BeyondStore`]. A limit is refused if its burst exceeds
//! 10^12 tokens. It is also refused if its rate in lowest terms is too fine: millitokens times
//! milliseconds must stay below 2^53. Rates of whole tokens per whole seconds are never too fine,
//! up to 10^11 tokens a day. A debt ends at 10^12 tokens.
//!
//! The time is the caller's, as on other stores, so the clocks of all producers should agree. A
//! refill time never goes back, except if it was more than a minute ahead. [`TimeSource::Server`]
//! uses the server's time.
//!
//! # Limits and parents
//!
//! Limits come with a request, or the program sets them once: [`RedisStore::limits`] and
//! [`RedisStore::parents`]. Limits in the request win, and no limit is ever removed from a bucket.
//! Nothing else is stored: no entities, no limits that a person changes while programs run, and no
//! usage windows. Metering needs the table's stream, which Redis lacks. Instead there are the
//! counters of consumption, as long as the bucket lives: [`LimitStatus::consumed`] of a peek.
//!
//! # A cluster
//!
//! With the feature `redis-cluster`, use [`RedisStore::cluster`]. A script sees the keys of one
//! node, so the keys of an entity and its parent carry the same tag. The store must therefore know
//! the parents itself: set them with [`RedisStore::parents`]. A request that names another parent
//! is refused with [`InvalidRequest::CrossSlot`]. On one server, any parent can be named.
//!
//! # TLS
//!
//! With the feature `redis-tls`, a URL that begins with `rediss://` encrypts connections. The store
//! trusts the root certificates of the system. If `SSL_CERT_FILE` or `SSL_CERT_DIR` is set, it
//! trusts those certificates instead. If they cannot be read or the server has none of them, that
//! is an outage. A program may install a `CryptoProvider` of rustls first; otherwise ring is used.
//!
//! # Costs
//!
//! An acquire, an adjustment or a peek is one call, of any number of limits and with a parent. The
//! process remembers no bucket between calls. Acquires of one process that differ only in their
//! amounts share a call if they arrive while another one is in flight: each is decided as if it
//! came by itself, in order of arrival. An acquire is cheapest if requests name the same limits as
//! the one before: the script then compares them with those of the bucket as bytes.
//! [`Cost`](crate::request::Cost) counts units of DynamoDB: none. With
//! [`LimiterBuilder::leasing`](crate::LimiterBuilder::leasing) the process decides by itself, and
//! one call settles and leases more.
//!
//! # Refusals and outages
//!
//! Refusals and outages are those of other stores ([`AcquireError`]). A cluster whose node died is
//! unavailable for the buckets of that node. The store sends a script again under its request's id
//! until the deadline, at most 40 times while the server answers. It takes effect once while the
//! bucket remembers the id ([`guide`](crate::guide#lost-answers)). A refund that may have been made
//! is not repeated: [`AdjustError::Ambiguous`].
//!
//! [`LimitStatus::consumed`]: crate::LimitStatus::consumed

mod acquire;
mod adjust;
mod boundaries;
mod call_driver;
mod configured;
mod connection;
mod error;
mod keys;
#[cfg(feature = "leasing")]
mod lease;
mod peek;
mod range;
mod repeat;
mod reply;
mod script;
mod script_bucket;
#[cfg(test)]
mod script_properties;
mod shared_calls;
mod targets;
mod value;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
#[cfg(feature = "leasing")]
use quick_cache::sync::Cache;
use redis::{IntoConnectionInfo, RedisError};
use sluicegate_core::keys::LimitsScope;
#[cfg(feature = "leasing")]
use sluicegate_core::{BucketId, CompositeBucket};
use sluicegate_core::{EntityId, EpochMillis};

use self::configured::Configured;
use self::connection::Connection;
use self::keys::Keys;
use self::shared_calls::SharedCalls;
use crate::call::CallContext;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::error::{AcquireError, AdjustError, InvalidRequest, LimitStatus};
use crate::limit::Limit;
use crate::store::{Adjusted, BoxFuture, Correction, Grant, Request, Store};

/// The most buckets whose newest image is remembered.
#[cfg(feature = "leasing")]
const IMAGES_MAX: usize = 10_000;

/// Balances on Redis. Can be made with or without a runtime; the first call connects.
#[derive(Debug)]
pub struct RedisStore {
    connection: Arc<Connection>,
    keys: Keys,
    configured: Arc<Configured>,
    time: TimeSource,
    /// With [`TimeSource::Server`], the milliseconds by which the server's clock was ahead of the
    /// limiter's at the last answer. It is too small by the time that the answer travelled. The
    /// nodes of a cluster share it.
    server_ahead_ms: Arc<AtomicI64>,
    counters: Arc<Counters>,
    shared_calls: Arc<SharedCalls>,
    /// Buckets as the newest answer of a lease or a correction showed them.
    #[cfg(feature = "leasing")]
    images: Arc<Cache<BucketId, Arc<CompositeBucket>>>,
}

/// The clock that tells the scripts the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TimeSource {
    /// The limiter's clock.
    #[default]
    Caller,
    /// The server's clock, for producers with clocks that differ. Waiting still uses the limiter's.
    /// Decisions without a call (leasing in write-behind mode, [`OnUnavailable::Local`]) add the
    /// difference that the last answer showed.
    ///
    /// [`OnUnavailable::Local`]: crate::OnUnavailable::Local
    Server,
}

impl RedisStore {
    /// The server at this URL, such as `redis://127.0.0.1/`. It must speak RESP3 (Redis 6 or
    /// newer).
    ///
    /// # Errors
    /// If the URL cannot be read, or begins with `rediss://` without the feature `redis-tls`. Only
    /// calls find out that a server does not answer.
    pub fn new(url: impl IntoConnectionInfo) -> Result<Self, RedisError> {
        Connection::lazy(url).map(Self::from_connection)
    }

    /// The cluster that these nodes belong to.
    ///
    /// # Errors
    /// If a URL cannot be read, or begins with `rediss://` without the feature `redis-tls`.
    #[cfg(feature = "redis-cluster")]
    pub fn cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Self, RedisError> {
        Connection::lazy_cluster(nodes).map(Self::from_connection)
    }

    fn from_connection(connection: Connection) -> Self {
        Self {
            connection: Arc::new(connection),
            keys: Keys::default(),
            configured: Arc::default(),
            time: TimeSource::Caller,
            server_ahead_ms: Arc::default(),
            counters: Arc::default(),
            shared_calls: Arc::default(),
            #[cfg(feature = "leasing")]
            images: Arc::new(Cache::new(IMAGES_MAX)),
        }
    }

    /// The same store, for a task that outlives a call. This is not `Clone`: a clone with another
    /// prefix would share calls with this store.
    fn share(&self) -> Self {
        Self {
            connection: self.connection.clone(),
            keys: self.keys.clone(),
            configured: self.configured.clone(),
            time: self.time,
            server_ahead_ms: self.server_ahead_ms.clone(),
            counters: self.counters.clone(),
            shared_calls: self.shared_calls.clone(),
            #[cfg(feature = "leasing")]
            images: self.images.clone(),
        }
    }

    /// The prefix of every key; default `sluicegate:`. It must have no braces, which a cluster
    /// would interpret.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.keys.prefix = prefix.into();
        self
    }

    /// Sets the clock that tells the scripts the time.
    #[must_use]
    pub const fn time(mut self, time: TimeSource) -> Self {
        self.time = time;
        self
    }

    /// Limits that requests need not bring. Each limit of a bucket comes from the request, or from
    /// the narrowest scope that names it. Every process on the bucket should set the same.
    ///
    /// # Errors
    /// [`InvalidRequest`] if a limit is invalid, or beyond the numbers that this store counts
    /// exactly.
    pub fn limits(
        mut self,
        scope: LimitsScope,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<Self, InvalidRequest> {
        let limits: Vec<_> = limits.into_iter().collect();
        Arc::make_mut(&mut self.configured).set(scope, &limits)?;
        Ok(self)
    }

    /// Sets the function that returns an entity's parent. A request that does not name a parent
    /// cascades to it; in a cluster, no other parents are possible.
    ///
    /// The key of a bucket carries the id of the topmost ancestor. So every process must set the
    /// same parents, and an entity whose parent changes gets new, full buckets.
    #[must_use]
    pub fn parents(
        mut self,
        parent: impl Fn(&EntityId) -> Option<EntityId> + Send + Sync + 'static,
    ) -> Self {
        self.keys.parents = Some(Arc::new(parent));
        self
    }
}

impl Store for RedisStore {
    fn now(&self, clock: &dyn Clock) -> EpochMillis {
        let ahead_ms = self.server_ahead_ms.load(Ordering::Relaxed);
        EpochMillis::new(clock.now().get().saturating_add(ahead_ms)).unwrap_or(EpochMillis::MAX)
    }

    fn acquire<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        self.take(request, clock).boxed()
    }

    fn adjust<'a>(
        &'a self,
        correction: &'a Correction<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Adjusted, AdjustError>> {
        async move { Ok(self.correct(correction, clock).await?.adjusted) }.boxed()
    }

    fn peek<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Vec<LimitStatus>, AcquireError>> {
        self.peek_statuses(request, clock).boxed()
    }

    /// Asks a server for its time. In a cluster it asks any node; a failed node makes only its own
    /// buckets unavailable.
    fn check<'a>(
        &'a self,
        clock: &'a dyn Clock,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<(), AcquireError>> {
        async move {
            let mut context = CallContext::new(clock, deadline);
            let time = redis::cmd("TIME");
            let asked = async { self.connection.send(&time).await.map_err(error::of) };
            let result = context.in_time(asked).await.map(drop);
            result.map_err(|table_error| context.fail_with(table_error))
        }
        .boxed()
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
