//! A request of a queue.

use std::sync::Arc;

use super::request::{Done, Purpose, QueuedRequest};
use super::settings::{AHEAD_ATTEMPTS_MAX, ATTEMPTS_MAX, BUCKETS_MAX};
use crate::{Amounts, CompositeBucket, EpochMillis, LimitName, LimitStatus, Millitokens};

/// A request of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Member<W> {
    pub(super) request: QueuedRequest,
    /// `None`: its caller left, or it never had one.
    pub(super) waiter: Option<W>,
    /// For each bucket: true if its known image is authoritative, and comes from a call that was
    /// sent after the request entered. A pause, a lost answer, a failed reconfiguring write, a
    /// derived image or an image from another lane makes it false again.
    pub(super) has_fresh_image: [bool; BUCKETS_MAX],
    /// True if it had entered when the call in flight was sent.
    pub(super) entered_before_call: bool,
    /// True if its last write was outrun.
    pub(super) was_outrun: bool,
    /// The time at which it was first passed over, because requests before it took the tokens that
    /// it needs.
    pub(super) passed_over_at: Option<EpochMillis>,
    pub(super) attempts: u32,
    /// Its refusal, if that waits, or has waited, for a write that only gives back tokens.
    pub(super) refusal: Option<Vec<Vec<LimitStatus>>>,
    /// For each bucket: true if the queue may still bring the item to the request's limits before
    /// it refuses the request. It does so once.
    pub(super) may_reconfigure: [bool; BUCKETS_MAX],
    /// True if it gives up its conditions on the balance.
    pub(super) is_forced: bool,
    /// The tokens that a lease takes by the write that carries it.
    pub(super) leased: Amounts,
    /// Its limits that the bucket does not have.
    pub(super) dropped: Vec<LimitName>,
}

impl<W> Member<W> {
    pub(super) const fn new(request: QueuedRequest, waiter: Option<W>) -> Self {
        Self {
            request,
            waiter,
            has_fresh_image: [false; BUCKETS_MAX],
            entered_before_call: false,
            was_outrun: false,
            passed_over_at: None,
            attempts: 0,
            refusal: None,
            may_reconfigure: [true; BUCKETS_MAX],
            is_forced: false,
            leased: Amounts::new(),
            dropped: Vec::new(),
        }
    }

    /// True if it still has to be written: its caller waits, or it gives back tokens for a caller
    /// that left.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiter.is_some() || self.request.purpose == Purpose::ReturnForLeaver
    }

    /// True if it is an acquire or a lease. Corrections and returns for leavers are never refused.
    pub(super) fn may_be_refused(&self) -> bool {
        matches!(self.request.purpose, Purpose::Acquire | Purpose::Lease(_))
    }

    /// The tokens that a lease returns before it takes any.
    pub(super) fn lease_return(&self) -> &Amounts {
        match &self.request.purpose {
            Purpose::Lease(terms) => &terms.returned,
            _ => Amounts::EMPTY,
        }
    }

    /// The number of attempts after which no new write carries it.
    pub(super) fn attempts_max(&self) -> u32 {
        match &self.request.purpose {
            Purpose::Lease(terms) if terms.is_ahead_of_need() => AHEAD_ATTEMPTS_MAX,
            _ => ATTEMPTS_MAX,
        }
    }

    pub(super) fn returns_tokens(&self) -> bool {
        let mut amounts = self.request.demands.iter().flat_map(|demand| demand.amounts.values());
        amounts.any(|amount| *amount < Millitokens::ZERO) || !self.lease_return().is_empty()
    }

    /// True if it gives back more of some limit than it takes of that limit.
    pub(super) fn returns_more_than_it_takes(&self) -> bool {
        let mut amounts = self.request.demands.iter().flat_map(|demand| demand.amounts.values());
        let is_more = |(limit, back): (&LimitName, &Millitokens)| *back > self.leased.of(limit);
        amounts.any(|amount| *amount < Millitokens::ZERO) || self.lease_return().iter().any(is_more)
    }

    /// True if it is a correction that takes tokens.
    pub(super) fn corrects_upwards(&self) -> bool {
        let mut amounts = self.request.demands.iter().flat_map(|demand| demand.amounts.values());
        self.request.purpose == Purpose::Correct
            && amounts.any(|amount| *amount > Millitokens::ZERO)
    }

    /// Its effect, if an earlier attempt took effect, or there was nothing to write.
    pub(super) fn done(&self, images: Vec<Option<Arc<CompositeBucket>>>) -> Done {
        Done {
            path: None,
            images,
            leased: self.leased.clone(),
            dropped: self.dropped.clone(),
            is_forced: false,
            attempts: self.attempts,
        }
    }
}
