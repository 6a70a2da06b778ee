//! Balances on Redis: one string for each bucket, changed by one script a call.
//!
//! ```no_run
//! use sluicegate::redis::RedisStore;
//! use sluicegate::{Limit, Limiter};
//!
//! # async fn gateway() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::new(RedisStore::new("redis://127.0.0.1/")?);
//! let limits = [Limit::per_minute("rpm", 100), Limit::per_minute("tpm", 100_000)];
//! let ask = limiter.acquire("user-123", "gpt-4").consume("rpm", 1).consume("tpm", 500);
//! let lease = ask.limits(limits).await?;
//! lease.adjust("tpm", 740).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # A bucket
//!
//! The key is `sluicegate:{user-123}#gpt-4`. Its value is binary, because a script spends more on
//! turning numbers into text and back than on a decision. It holds the balance and the consumption of
//! each limit, the instant when refill was last counted for all of them, the rules, the ids of the last
//! four requests, and what remembered leases took. [`RedisStore::bucket`] reads it; in a terminal,
//! `show.lua` in this crate's `src/redis/lua` prints it:
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
//! All numbers are whole millitokens and milliseconds. A bucket expires twice the time after the last
//! write that its slowest limit needs to fill from empty, a debt included; one with a limit that never
//! refills does not. A bucket that is gone is a full one. A server that evicts keys when its memory is
//! full therefore forgets debts: let it refuse writes instead (`maxmemory-policy noeviction`).
//!
//! # What is exact, and in which range
//!
//! A script is atomic: it counts the refill, checks every limit and takes, all or nothing, from a
//! child's and its parent's bucket too. Its numbers are doubles, so a limit is refused before any
//! call, with [`InvalidRequest::BeyondStore`], where its burst is above 10^12 tokens, or where the
//! millitokens times the milliseconds of its rate in lowest terms come to 2^53. Whole tokens every
//! so many seconds never do up to 10^11 tokens a day. A debt ends at 10^12 tokens.
//!
//! The time is the caller's, as everywhere, so the clocks of all producers should agree; a refill
//! time never goes back, except where it was more than a minute ahead. [`Time::Server`] takes the
//! server's.
//!
//! # Limits and parents
//!
//! Limits come with a request, or the program says them once: [`RedisStore::limits`] and
//! [`RedisStore::parents`]. What the request says wins, and no limit is ever removed from a bucket.
//! Nothing else is stored: no entities, no limits that a person changes while programs run, and no
//! usage windows. Metering is the table's stream, which Redis has not; what there is of it are the
//! counters of consumption, as long as the bucket lives: [`LimitStatus::consumed`] of a peek.
//!
//! # A cluster
//!
//! With the feature `redis-cluster`, [`RedisStore::cluster`]. A script sees the keys of one node, so
//! the keys of an entity and its parent carry the same tag, which is why the store must know the
//! parents by itself: say them with [`RedisStore::parents`]. A request that names another parent is
//! refused with [`InvalidRequest::CrossSlot`]. On one server, any parent
//! can be named.
//!
//! # TLS
//!
//! `rediss://` works where the program turns on `tokio-rustls-comp` of the crate `redis`.
//!
//! # What it costs
//!
//! One call for an acquire, an adjustment or a look, of any number of limits and with a parent;
//! nothing is remembered between calls. Acquires of one process that differ only in their amounts
//! share a call if they arrive while another one is in flight: each is decided as if it came by
//! itself, in order of arrival. An acquire is cheapest where requests name the same limits as
//! the one before: the script then compares them with those of the bucket as bytes. [`Cost`](crate::Cost) counts units of DynamoDB: none.
//! With [`LeasedLimiter::leased`](crate::LeasedLimiter) a process decides by itself, and one call
//! settles and leases more.
//!
//! # What is refused, and what is away
//!
//! As everywhere ([`AcquireError`]). A script is sent again under its request's id
//! until its deadline, so it is done once, unless four others wrote in between. A refund that may
//! have been made is not made again: [`AdjustError::Ambiguous`].
//!
//! [`LimitStatus::consumed`]: crate::LimitStatus::consumed

mod acquire;
mod adjust;
mod configured;
mod connection;
mod keys;
mod lanes;
mod lead;
mod lease;
mod range;
mod repeat;
mod reply;
mod script;
mod script_bucket;
#[cfg(test)]
mod script_properties;
mod sides;
mod table_error;
mod value;

use std::sync::Arc;
use std::time::Duration;

use redis::{IntoConnectionInfo, RedisError};
use sluicegate_core::EntityId;
use sluicegate_core::keys::LimitsScope;

use self::configured::Configured;
use self::connection::Connection;
use self::keys::Keys;
use self::lanes::Lanes;
use crate::call::CallContext;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::error::{AcquireError, AdjustError, InvalidRequest, LimitStatus};
use crate::limit::Limit;
use crate::store::{Adjusted, Correction, Grant, Request, Store};

/// Balances on Redis. Made at once, with or without a runtime; the first call connects.
#[derive(Debug)]
pub struct RedisStore {
    connection: Arc<Connection>,
    keys: Keys,
    configured: Arc<Configured>,
    time: Time,
    counters: Arc<Counters>,
    lanes: Arc<Lanes>,
}

/// Whose time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Time {
    /// That of the limiter's clock.
    #[default]
    Caller,
    /// That of the server: for producers whose clocks differ. Waiting is still by the limiter's.
    Server,
}

impl RedisStore {
    /// The server at this URL, as `redis://127.0.0.1/`.
    ///
    /// # Errors
    /// When the URL cannot be read. That the server does not answer is found out by calls.
    pub fn new(url: impl IntoConnectionInfo) -> Result<Self, RedisError> {
        Connection::lazy(url).map(Self::on)
    }

    /// The cluster that these nodes belong to.
    ///
    /// # Errors
    /// When a URL cannot be read.
    #[cfg(feature = "redis-cluster")]
    pub fn cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Self, RedisError> {
        Connection::lazy_cluster(nodes).map(Self::on)
    }

    fn on(connection: Connection) -> Self {
        Self {
            connection: Arc::new(connection),
            keys: Keys::default(),
            configured: Arc::default(),
            time: Time::Caller,
            counters: Arc::default(),
            lanes: Arc::default(),
        }
    }

    /// The same store, for a task that outlives a call.
    fn share(&self) -> Self {
        let Self { connection, keys, configured, time, counters, lanes } = self;
        Self {
            connection: connection.clone(),
            keys: keys.clone(),
            configured: configured.clone(),
            time: *time,
            counters: counters.clone(),
            lanes: lanes.clone(),
        }
    }

    /// What every key begins with; `sluicegate:` unless said otherwise. Without braces, which a
    /// cluster would read.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.keys.prefix = prefix.into();
        self
    }

    /// Whose time counts.
    #[must_use]
    pub const fn time(mut self, time: Time) -> Self {
        self.time = time;
        self
    }

    /// Limits that requests need not bring. Each limit of a bucket comes from the request, or from
    /// the narrowest scope that names it. Every process on the bucket should say the same.
    ///
    /// # Errors
    /// [`InvalidRequest`] when a limit cannot be, or is beyond what this store counts exactly.
    pub fn limits(
        mut self,
        scope: LimitsScope,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<Self, InvalidRequest> {
        let limits: Vec<_> = limits.into_iter().collect();
        Arc::make_mut(&mut self.configured).set(scope, &limits)?;
        Ok(self)
    }

    /// Who is whose parent: what a request cascades to that does not say so itself, and in a cluster
    /// the only parents that there are.
    ///
    /// The key of a bucket carries the id of the one at the top, so every process must say the same,
    /// and an entity whose parent changes has new, full buckets.
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
    async fn acquire(&self, request: &Request, clock: &dyn Clock) -> Result<Grant, AcquireError> {
        self.take(request, clock).await
    }

    async fn adjust(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> Result<Adjusted, AdjustError> {
        Ok(self.correct(correction, clock).await?.adjusted)
    }

    async fn peek(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> Result<Vec<LimitStatus>, AcquireError> {
        self.look(request, clock).await
    }

    /// Asks a server for its time: in a cluster any of them, one that is gone takes only its own
    /// buckets along.
    async fn check(&self, clock: &dyn Clock, deadline: Duration) -> Result<(), AcquireError> {
        let mut run = CallContext::new(clock, deadline);
        let time = redis::cmd("TIME");
        let asked = async { self.connection.send(&time).await.map_err(table_error::of) };
        match run.in_time(asked).await {
            Ok(_) => Ok(()),
            Err(table_error) => Err(run.end(table_error)),
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
