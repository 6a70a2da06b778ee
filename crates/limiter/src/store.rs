//! The operations that a limiter needs of a store: acquire, correct, read.
//!
//! A request here is complete and checked; every name and amount in it is within its range.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
pub use futures_util::future::BoxFuture;
use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, EntityId, EpochMillis, LimitName, RequestId,
    Resource, Rules,
};

use crate::clock::Clock;
use crate::cost::Cost;
pub use crate::counters::{Counter, Counters};
use crate::degraded::Degraded;
use crate::error::{AcquireError, AdjustError, InvalidRequest, LimitStatus};
pub use crate::memory::MemoryTable;
pub use crate::table::{
    Cancelled, Consistency, Mark, ReadItems, Table, TableError, TransactError, WriteError, Written,
};

/// A store of balances.
pub trait Store: Any + Send + Sync {
    /// Takes all tokens of the request, or none.
    fn acquire<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>>;

    /// Corrects a grant. A repeated correction under the same id is made once, as long as the
    /// bucket remembers the id.
    ///
    /// # Errors
    /// [`AdjustError::Ambiguous`] if a correction without a mark may have given tokens back.
    /// [`AdjustError::Unavailable`] in an outage, or if a debit or a correction with a mark may
    /// have been made; the same call may be repeated. After any other error, nothing was done.
    fn adjust<'a>(
        &'a self,
        correction: &'a Correction<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Adjusted, AdjustError>>;

    /// The current status of all limits of a bucket, and of its parent's.
    fn peek<'a>(
        &'a self,
        request: &'a Request,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Vec<LimitStatus>, AcquireError>>;

    /// Checks that the store answers, by the cheapest read.
    fn check<'a>(
        &'a self,
        clock: &'a dyn Clock,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<(), AcquireError>> {
        async move {
            let request = Request {
                entity: EntityId::new("sluicegate").map_err(InvalidRequest::from)?,
                resource: Resource::new("check").map_err(InvalidRequest::from)?,
                amounts: Amounts::new(),
                limits: Arc::default(),
                parent_limits: None,
                cascade: Cascade::No,
                deadline,
            };
            self.peek(&request, clock).await.map(drop)
        }
        .boxed()
    }

    /// Grants tokens held in this process, without a call. The limiter calls this, and not
    /// [`acquire`](Self::acquire), while the store does not answer. Most stores hold no tokens.
    fn acquire_held(&self, _request: &Request) -> Option<Grant> {
        None
    }

    /// Makes a correction with tokens held in this process, all of it or nothing, without a call.
    /// The limiter calls this before [`adjust`](Self::adjust). Most stores hold no tokens.
    fn adjust_held(&self, _correction: &Correction<'_>) -> Option<Adjusted> {
        None
    }

    /// The buckets of a request with their newest known images, without a call. `None`: they are
    /// not known. Only a store that leases answers: the guard does not see its grants of held
    /// tokens, and asks here for the balances after them. The guard itself remembers the grants of
    /// other stores.
    fn known_by_leasing(&self, _request: &Request) -> Option<Vec<BucketGrant>> {
        None
    }

    /// Of a store that leases: the number of calls that the store behind it has answered. If the
    /// number grew during an acquire that was granted from held tokens, that store answered
    /// meanwhile.
    fn answered_lease_calls(&self) -> u64 {
        0
    }

    /// The time by which this store refills, as far as the process knows it; `clock` is the
    /// limiter's. They differ if a server's clock counts ([`TimeSource::Server`]).
    ///
    /// [`TimeSource::Server`]: crate::redis::TimeSource::Server
    fn now(&self, clock: &dyn Clock) -> EpochMillis {
        clock.now()
    }

    /// The store behind this one, if there is one.
    fn inner(&self) -> Option<&dyn Store> {
        None
    }

    /// The counters of this store.
    fn counters(&self) -> &Counters;
}

/// A checked request for tokens.
#[derive(Debug, Clone)]
pub struct Request {
    /// The entity that asks.
    pub entity: EntityId,
    /// The resource that it asks for.
    pub resource: Resource,
    /// The amount of each limit.
    pub amounts: Amounts,
    /// Limits that come with the request.
    pub limits: Arc<Rules>,
    /// Limits of the parent that come with the request; `None`: those of the entity.
    pub parent_limits: Option<Arc<Rules>>,
    /// The parent from whose bucket the request takes too.
    pub cascade: Cascade,
    /// The most time that the whole call may take. Giving tokens back, in a compensating cascade,
    /// may take as long again.
    pub deadline: Duration,
}

/// The parent from whose bucket a request takes too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Cascade {
    /// As the record of the entity in the table says.
    #[default]
    Stored,
    /// No; the record is not read.
    No,
    /// From this parent; the record is not read.
    To(EntityId),
}

/// Tokens that were taken.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The buckets they were taken from: the entity's own first.
    pub parts: Vec<BucketGrant>,
    /// The cost of taking them.
    pub cost: Cost,
}

impl Grant {
    /// True if this process held all of the tokens: the store was not asked.
    pub(crate) const fn is_held(&self) -> bool {
        self.cost.path.is_none()
    }
}

/// The tokens taken from one bucket. Also stands for a bucket with its image and its limits from
/// which nothing was taken yet ([`Store::known_by_leasing`]).
#[derive(Debug, Clone)]
pub struct BucketGrant {
    /// The bucket.
    pub bucket: BucketId,
    /// The amounts taken.
    pub amounts: Amounts,
    /// The bucket after the take, as far as it is known.
    pub image: Option<Arc<CompositeBucket>>,
    /// Its limits.
    pub configuration: Arc<Configuration>,
    /// Of the entity's own bucket: the bucket of its parent, if that has none of the requested
    /// limits, so that nothing was taken from it. A correction may name another of its limits.
    pub uncharged_parent: Option<Arc<BucketGrant>>,
}

impl BucketGrant {
    /// The amounts taken from a bucket without an uncharged parent.
    pub(crate) const fn new(
        bucket: BucketId,
        amounts: Amounts,
        image: Option<Arc<CompositeBucket>>,
        configuration: Arc<Configuration>,
    ) -> Self {
        Self { bucket, amounts, image, configuration, uncharged_parent: None }
    }
}

/// A correction of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct Correction<'a> {
    /// The id of the correction in the bucket.
    pub id: &'a RequestId,
    /// The bucket.
    pub bucket: &'a BucketId,
    /// The amounts to add to the consumption of each limit; negative amounts give tokens back.
    pub amounts: &'a Amounts,
    /// The limits of the bucket, in case it expired meanwhile.
    pub configuration: &'a Configuration,
    /// The mark of a correction that is made once; `None`: the id alone keeps it from being made
    /// twice.
    pub mark: Option<&'a Mark>,
    /// True if an earlier attempt under this id may have been made. Then leasing does not correct
    /// held tokens: only the store behind it can tell whether that attempt was made.
    pub is_repeated: bool,
    /// The most time that the whole call may take.
    pub deadline: Duration,
}

/// The effect of a correction, for its caller.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Adjusted {
    /// Limits that a bucket does not have: nothing was corrected there.
    pub dropped: Vec<LimitName>,
    /// After an [`AdjustRequest`](crate::request::AdjustRequest): these limits, each with the
    /// entity whose bucket lacks it (the requested entity or its parent). Empty after a correction
    /// of a permit.
    pub dropped_of: Vec<(EntityId, LimitName)>,
    /// True if the correction had to give up its conditions on the balance.
    pub is_forced: bool,
    /// True if an earlier correction with the same key was made, perhaps by an attempt of this one
    /// whose answer was lost: see [`AdjustRequest::once`](crate::request::AdjustRequest::once).
    pub already_made: bool,
    /// True beside `already_made` if that was another correction: the key was used twice. Then this
    /// request changed nothing.
    pub key_was_reused: bool,
    /// Write units spent.
    pub write_units: f64,
    /// The reason why nothing was corrected: the permit was granted without the store.
    pub degraded: Option<Degraded>,
}

impl Adjusted {
    /// Adds the result of another bucket's correction.
    pub(crate) fn add(&mut self, other: Self) {
        self.dropped.extend(other.dropped);
        self.dropped_of.extend(other.dropped_of);
        self.is_forced |= other.is_forced;
        self.write_units += other.write_units;
    }
}

/// The effect of a correction on one bucket, with the bucket after it.
#[derive(Debug)]
pub struct Corrected {
    /// Its result.
    pub adjusted: Adjusted,
    /// The bucket after it, as far as it is known.
    pub image: Option<Arc<CompositeBucket>>,
    /// Writes attempted.
    pub attempts: u32,
}
