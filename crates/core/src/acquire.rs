//! A request for tokens of one bucket.

use crate::{Amounts, BucketId, ClaimInterval, Configuration, RequestId};

/// A request for tokens of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct Acquire<'a> {
    /// Which bucket.
    pub bucket: &'a BucketId,
    /// How much, of at most [`LIMITS_MAX`](crate::LIMITS_MAX) limits; every amount is positive.
    pub amounts: &'a Amounts,
    /// What the limits should be.
    pub configuration: &'a Configuration,
    /// The id of the request, the same for all its attempts.
    pub id: &'a RequestId,
    /// How long a claim serves the writers behind it.
    pub interval: ClaimInterval,
    /// What to take for granted.
    pub hint: RefillHint,
}

/// What a decision takes for granted about writers that it has not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefillHint {
    /// The item is as the image shows it.
    TrustImage,
    /// Somebody claimed within the last interval, although the image does not show it yet: with
    /// many processes on one bucket every image is out of date, and a lock tied to it would make
    /// them lose to one another.
    AssumeRefilled,
}
