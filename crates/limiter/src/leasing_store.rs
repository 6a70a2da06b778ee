//! The operations that leasing needs of a store: to lease and settle in one write, to find out the
//! result of a lost write, to correct and to read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, LeaseRange, LeaseTerms, LimitName, RequestId,
};

use crate::call::CallContext;
use crate::clock::Clock;
use crate::composite::Lane;
use crate::cost::Cost;
use crate::error::{AcquireError, AdjustError};
use crate::store::{BoxFuture, BucketGrant, Corrected, Correction, Request, Store};

/// A store that tokens can be leased from: [`CompositeStore`](crate::CompositeStore) and, with the
/// feature `redis`, `RedisStore`. The trait is sealed: a lost answer is described in types that
/// only these two know.
pub trait LeasingStore: LeaseCalls {}

impl<S: LeaseCalls> LeasingStore for S {}

/// The part of a [`LeasingStore`] that other crates cannot implement.
pub trait LeaseCalls: Store {
    /// The buckets of a request, without taking anything; `None`: some of it cannot be leased. This
    /// deadline counts, and not the request's. With a deadline of zero it makes no call, and fails
    /// if it would need one.
    fn parts<'a>(
        &'a self,
        request: &'a Request,
        deadline: Duration,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Option<Vec<BucketGrant>>, AcquireError>>;

    /// How often this process changed stored limits or parents through this store, or noticed that
    /// stored limits had changed.
    fn changes(&self) -> u64;

    /// The current limits of a bucket. Limits that came with a request stay as they are; stored
    /// limits, if there were some, are looked up. Remembered data is not read again.
    fn limits_now<'a>(
        &'a self,
        bucket: &'a BucketId,
        before: &'a Arc<Configuration>,
        deadline: Duration,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Arc<Configuration>, AcquireError>>;

    /// Leases and settles in one write.
    ///
    /// With `in_doubt` it sends that lost write again under its id, and the request names what the
    /// write was to settle. If it was done, this returns its result. If not, it leases if the
    /// tokens are wanted and available, and settles in any case. The lost attempt cannot take
    /// effect while the bucket remembers the id.
    ///
    /// A new lease, too, may settle without leasing ([`LeaseOutcome::covers`]). After an error
    /// without [`LeaseError::in_doubt`], nothing was leased or settled. A lost attempt cannot take
    /// effect while the bucket remembers its fence (ADR 16).
    fn lease<'a>(
        &'a self,
        lease: &'a LeaseRequest<'a>,
        in_doubt: Option<LeaseInDoubt>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<LeaseOutcome, LeaseError>>;

    /// Reads the bucket so that every earlier write is visible; returns it with the read units
    /// spent. If the store answered a moment ago that the bucket has less than `asked`, this
    /// returns a refusal without a read.
    fn refuse_or_read<'a>(
        &'a self,
        bucket: &'a BucketId,
        configuration: &'a Configuration,
        asked: &'a Amounts,
        deadline: Duration,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<BucketRead, AcquireError>>;

    /// Makes a correction, and returns the bucket after it.
    fn correct<'a>(
        &'a self,
        correction: &'a Correction<'a>,
        clock: &'a dyn Clock,
    ) -> BoxFuture<'a, Result<Corrected, AdjustError>>;
}

/// A bucket, if it exists, and the read units that were spent.
pub(crate) type BucketRead = (Option<Arc<CompositeBucket>>, f64);

/// A lease of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest<'a> {
    /// The bucket.
    pub bucket: &'a BucketId,
    /// Its limits.
    pub configuration: &'a Configuration,
    /// The tokens to lease, and the amounts to settle with them.
    pub terms: &'a Arc<LeaseTerms>,
    /// The caller's last write on the bucket that was answered, if it knows.
    pub last: Option<&'a RequestId>,
    /// The most time that the whole call may take.
    pub deadline: Duration,
}

/// A write that was done, or that was not needed.
#[derive(Debug)]
pub struct LeaseOutcome {
    /// Its id.
    pub id: RequestId,
    /// The amounts leased.
    pub leased: Amounts,
    /// The bucket after it, as far as it is known.
    pub image: Option<Arc<CompositeBucket>>,
    /// Its cost. No path: there was nothing to write.
    pub cost: Cost,
}

impl LeaseOutcome {
    /// True if it leased the least that was wanted of each limit. It did not if it only settled: it
    /// had to settle a deleted limit, or an answer was lost, other writers then took the tokens,
    /// and it fenced its lost write.
    pub(crate) fn covers(&self, wanted: &BTreeMap<LimitName, LeaseRange>) -> bool {
        wanted.iter().all(|(limit, range)| self.leased.of(limit) >= range.least)
    }
}

/// A lease that was not granted.
#[derive(Debug)]
pub struct LeaseError {
    /// The reason.
    pub error: AcquireError,
    /// A write whose result is unknown. Until it is settled, no token that the request returned or
    /// counted may be used again.
    pub in_doubt: Option<LeaseInDoubt>,
    /// Writes attempted.
    pub attempts: u32,
}

/// A write that may have been done, or may still be done.
#[derive(Debug, Clone)]
pub struct LeaseInDoubt {
    /// Its id.
    pub id: RequestId,
    /// The most that it leases.
    pub leased: Amounts,
    /// The ids that the bucket remembered before it.
    pub remembered: Vec<RequestId>,
    /// True if the bucket may have forgotten it, so that its result will never be known.
    pub is_ambiguous: bool,
    /// The lane that knows of it, on DynamoDB.
    pub(crate) lane: Option<Arc<Lane>>,
}

impl LeaseRequest<'_> {
    /// The context of a call for it, under the id of the lost write if there is one.
    pub(crate) fn call_context<'c>(
        &self,
        in_doubt: Option<&LeaseInDoubt>,
        clock: &'c dyn Clock,
    ) -> CallContext<'c> {
        match in_doubt {
            Some(in_doubt) => CallContext::under(in_doubt.id.clone(), clock, self.deadline),
            None => CallContext::new(clock, self.deadline),
        }
    }
}
