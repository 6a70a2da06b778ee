//! What leasing needs of a store: to lease and settle in one write, to find out what became of one
//! that was not answered, to correct and to look.
//!
//! An answer that was lost says neither that a write was done nor that it was not. Until that is
//! known, nothing of what it returned or counted may be used again; [`LeaseCalls::resolve`] finds it out,
//! and afterwards the write cannot land until four others have written.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{
    Amounts, BucketId, CompositeBucket, Configuration, LeaseRange, LimitName, RequestId, WritePath,
};

use crate::call::CallContext;
use crate::clock::Clock;
use crate::composite::Lane;
use crate::error::{AcquireError, AdjustError};
use crate::store::{Adjusted, BucketGrant, Correction, Request, Store};

/// A store that tokens can be leased from: [`CompositeStore`](crate::CompositeStore) and, with the
/// feature `redis`, `RedisStore`. Others cannot be: what a lost answer leaves open is told in types
/// that only these know.
pub trait LeasingStore: LeaseCalls {}

impl<S: LeaseCalls> LeasingStore for S {}

/// The part of a [`LeasingStore`] that nobody else implements.
pub trait LeaseCalls: Store {
    /// The buckets of a request, without taking anything; `None`: some of it cannot be leased. A
    /// request without a deadline that is still to come asks nobody: it is an error where something
    /// has to be looked up.
    fn parts(
        &self,
        request: &Request,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<Option<Vec<BucketGrant>>, AcquireError>> + Send;

    /// The limits of a bucket as they are now: those that came with a request stay as they are, and
    /// stored ones, where there were some, are looked up. Nothing is read that is remembered.
    fn limits_now(
        &self,
        bucket: &BucketId,
        before: &Arc<Configuration>,
        deadline: Duration,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<Arc<Configuration>, AcquireError>> + Send;

    /// Leases and settles.
    fn lease(
        &self,
        order: &LeaseRequest<'_>,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<LeaseOutcome, LeaseError>> + Send {
        self.carry_out(order, None, clock)
    }

    /// Finds out what became of a write that was not answered. The order is what it settled; what it
    /// leased is leased again where that is wanted and there. Otherwise the bucket is made to
    /// remember its id, so that it cannot land as long as fewer than four others write.
    fn resolve(
        &self,
        order: &LeaseRequest<'_>,
        doubt: UnackedWrite,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<LeaseOutcome, LeaseError>> + Send {
        self.carry_out(order, Some(doubt), clock)
    }

    /// Leases and settles or, in doubt, finds out.
    fn carry_out(
        &self,
        order: &LeaseRequest<'_>,
        doubt: Option<UnackedWrite>,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<LeaseOutcome, LeaseError>> + Send;

    /// The bucket as it is, by a read that sees every write; a refusal, without one, when the store
    /// said a moment ago that it is short. And the read units spent.
    fn look(
        &self,
        order: &LeaseRequest<'_>,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<(Option<Arc<CompositeBucket>>, f64), AcquireError>> + Send;

    /// Makes a correction, and says what the bucket came to.
    fn correct(
        &self,
        correction: &Correction<'_>,
        clock: &dyn Clock,
    ) -> impl Future<Output = Result<Corrected, AdjustError>> + Send;
}

/// What to lease and what to settle with it.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest<'a> {
    /// Which bucket.
    pub bucket: &'a BucketId,
    /// Its limits.
    pub configuration: &'a Configuration,
    /// How much of which limit; empty: only settle.
    pub wanted: &'a BTreeMap<LimitName, LeaseRange>,
    /// What comes back; no amount is negative.
    pub returned: &'a Amounts,
    /// What moves the counters of consumption.
    pub counting: Counting<'a>,
    /// The caller's last write on the bucket that was answered, if it knows.
    pub last: Option<&'a RequestId>,
    /// How long the whole call may take.
    pub deadline: Duration,
}

/// What moves the counters of consumption.
#[derive(Debug, Clone, Copy)]
pub enum Counting<'a> {
    /// What is leased less what comes back.
    Leased,
    /// So much.
    Used(&'a Amounts),
}

/// A write that was done, or that there was no reason for.
#[derive(Debug)]
pub struct LeaseOutcome {
    /// Its id.
    pub id: RequestId,
    /// What was leased.
    pub leased: Amounts,
    /// The bucket after it, as far as it is known.
    pub image: Option<Arc<CompositeBucket>>,
    /// `None`: there was nothing to write.
    pub path: Option<WritePath>,
    /// Writes attempted.
    pub attempts: u32,
    /// Write units spent.
    pub write_units: f64,
    /// Read units spent.
    pub read_units: f64,
}

/// A lease that was not granted.
#[derive(Debug)]
pub struct LeaseError {
    /// Why not.
    pub error: AcquireError,
    /// What is left open: until it is settled, nothing that the order returned or counted may be
    /// used again.
    pub doubt: Option<UnackedWrite>,
    /// Writes attempted.
    pub attempts: u32,
}

/// A write that may have been done, or may still be.
#[derive(Debug, Clone)]
pub struct UnackedWrite {
    /// Its id.
    pub id: RequestId,
    /// What it leases, at most.
    pub leased: Amounts,
    /// What the bucket remembered before it.
    pub remembered: Vec<RequestId>,
    /// The bucket may have forgotten it: nobody will ever know.
    pub is_lost: bool,
    /// The lane that knows of it, on DynamoDB.
    pub(crate) lane: Option<Arc<Lane>>,
}

impl LeaseRequest<'_> {
    /// A call for it, under the id of the write that was not answered, if there is one.
    pub(crate) fn run<'c>(
        &self,
        doubt: Option<&UnackedWrite>,
        clock: &'c dyn Clock,
    ) -> CallContext<'c> {
        match doubt {
            Some(doubt) => CallContext::under(doubt.id.clone(), clock, self.deadline),
            None => CallContext::new(clock, self.deadline),
        }
    }
}

impl UnackedWrite {
    /// The limits of its lease.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &LimitName> {
        self.leased.keys()
    }
}

/// A correction that was made.
#[derive(Debug)]
pub struct Corrected {
    /// What it came to.
    pub adjusted: Adjusted,
    /// The bucket after it, as far as it is known.
    pub image: Option<Arc<CompositeBucket>>,
    /// Writes attempted.
    pub attempts: u32,
}
