//! What a limiter needs of a store: acquire, correct, look.
//!
//! A request here is complete and checked; every name and amount in it is within its range.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, EntityId, LimitName, RequestId, Resource,
    Rules, WritePath,
};

use crate::clock::Clock;
use crate::counters::Counters;
use crate::degraded::Degraded;
use crate::error::{AcquireError, AdjustError, InvalidRequest, LimitStatus};

/// Where balances live.
pub trait Store: Send + Sync + 'static {
    /// Takes everything that is asked, or nothing.
    fn acquire(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<Grant, AcquireError>> + Send;

    /// Corrects what a grant took. The same correction under the same id is made once, as far as
    /// the bucket remembers.
    ///
    /// # Errors
    /// [`AdjustError::Ambiguous`] where tokens may have been given back;
    /// [`AdjustError::Unavailable`] where tokens may have been taken, or nothing was done; after any
    /// other, nothing was.
    fn adjust(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<Adjusted, AdjustError>> + Send;

    /// How all limits of a bucket, and of its parent's, stand now.
    fn peek(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<Vec<LimitStatus>, AcquireError>> + Send;

    /// Whether it answers: the cheapest read there is.
    fn check(
        &self,
        clock: &dyn Clock,
        deadline: Duration,
    ) -> impl Future<Output = Result<(), AcquireError>> + Send {
        async move {
            let request = Request {
                entity: EntityId::new("sluicegate").map_err(InvalidRequest::from)?,
                resource: Resource::new("check").map_err(InvalidRequest::from)?,
                amounts: Amounts::new(),
                limits: Rules::new(),
                parent_limits: None,
                cascade: Cascade::No,
                deadline,
            };
            self.peek(&request, clock).await.map(drop)
        }
    }

    /// Grants what it holds in this process, without asking anybody: it is asked for this, and not
    /// to [`acquire`](Self::acquire), while nobody answers it. Most stores hold nothing.
    fn acquire_held(&self, _request: &Request) -> Option<Grant> {
        None
    }

    /// Makes a correction with what it holds in this process, all of it or nothing, without asking
    /// anybody: it is asked for this before it is to [`adjust`](Self::adjust). Most stores hold
    /// nothing.
    fn adjust_held(&self, _correction: &Correction<'_>) -> Option<Adjusted> {
        None
    }

    /// What it counted so far.
    fn counters(&self) -> &Counters;
}

/// A checked request for tokens.
#[derive(Debug, Clone)]
pub struct Request {
    /// Who asks.
    pub entity: EntityId,
    /// For what.
    pub resource: Resource,
    /// How much of which limit.
    pub amounts: Amounts,
    /// Limits that come with the request.
    pub limits: Rules,
    /// Limits of the parent that come with the request; `None`: the same.
    pub parent_limits: Option<Rules>,
    /// Whether to take from a parent too.
    pub cascade: Cascade,
    /// How long the whole call may take.
    pub deadline: Duration,
}

/// Whether a request takes from a parent's bucket too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cascade {
    /// As the entity's record in the table says.
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
    /// The path of the last write; `None`: there was none.
    pub path: Option<WritePath>,
    /// Writes attempted.
    pub attempts: u32,
    /// Write units spent, refused attempts included (each counted as one unit).
    pub write_units: f64,
    /// Read units spent.
    pub read_units: f64,
}

/// What was taken from one bucket.
#[derive(Debug, Clone)]
pub struct BucketGrant {
    /// Which bucket.
    pub bucket: BucketId,
    /// What was taken.
    pub amounts: Amounts,
    /// The bucket after it, as far as it is known.
    pub image: Option<Arc<CompositeBucket>>,
    /// Its limits.
    pub configuration: Arc<Configuration>,
}

/// A correction of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct Correction<'a> {
    /// Names the correction in the bucket.
    pub id: &'a RequestId,
    /// Which bucket.
    pub bucket: &'a BucketId,
    /// What to add to the consumption of each limit; negative amounts give tokens back.
    pub amounts: &'a Amounts,
    /// The limits of the bucket, for one that expired meanwhile.
    pub configuration: &'a Configuration,
    /// How long the whole call may take.
    pub deadline: Duration,
}

/// A correction that was made.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Adjusted {
    /// Limits that the bucket no longer has: nothing was corrected there.
    pub dropped: Vec<LimitName>,
    /// True when the guards had to be given up to get it through.
    pub is_forced: bool,
    /// Write units spent.
    pub write_units: f64,
    /// Nothing was corrected, because the lease was granted without the store: there is nothing of
    /// it to correct.
    pub degraded: Option<Degraded>,
}

impl Adjusted {
    /// Adds what another bucket's correction came to.
    pub(crate) fn add(&mut self, other: Self) {
        self.dropped.extend(other.dropped);
        self.is_forced |= other.is_forced;
        self.write_units += other.write_units;
    }
}
